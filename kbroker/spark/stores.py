"""The store named by a job, and one open storage manager for each process that reads from it.

A job's options name the store with the broker's own keys. A Python worker of Spark runs many tasks one after the other
and keeps its storage manager open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from kbroker.config import Settings
from kbroker.spark.errors import InvalidOption
from kbroker.tiered.api import RemoteStorageManager
from kbroker.tiered.plugins import PluginError, storage_manager


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """A storage manager's class, and its settings without `rsm.config.`, which may be secret and are not shown."""

    class_name: str | None
    configs: Mapping[str, str] = field(repr=False)


def store_of(settings: Settings) -> StoreOptions:
    """The store of a broker with these settings."""
    configs = dict(settings.tier.rsm_configs)
    if settings.tier.is_directory:
        configs.setdefault("log.dir", settings.data_directory)
    return StoreOptions(settings.tier.remote_log_storage_manager_class_name, configs)


def open_store(options: StoreOptions) -> RemoteStorageManager:
    """The configured manager; the same one for equal options for the life of the process. Errors: InvalidOption."""
    return _opened(options.class_name, tuple(sorted(options.configs.items())))


@cache
def _opened(class_name: str | None, configs: tuple[tuple[str, str], ...]) -> RemoteStorageManager:
    try:
        storage = storage_manager(class_name)
    except PluginError as error:
        raise InvalidOption(
            str(error), remedy="set remote.log.storage.manager.class.name as in the broker's settings"
        ) from error
    try:
        storage.configure(dict(configs))
    except ValueError as error:
        raise InvalidOption(
            f"the store's settings: {error}", remedy="give rsm.config.* as in the broker's settings"
        ) from error
    return storage
