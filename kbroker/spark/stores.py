"""The store of the tier as a Spark job names it, and one open manager for each process that reads from it.

A job's options name the store with the broker's own keys. A Python worker of Spark serves many tasks one after the
other: what it opened once, it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.spark.errors import InvalidOption
from kbroker.tiered.api import RemoteStorageManager
from kbroker.tiered.plugins import PluginError, storage_manager


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which storage manager, and its settings without `rsm.config.`; they may hold secrets and are never shown."""

    class_name: str | None
    configs: Mapping[str, str] = field(repr=False)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one store from another."""
        return self.class_name, tuple(sorted(self.configs.items()))


_OPEN: dict[tuple[object, ...], RemoteStorageManager] = {}


def open_store(options: StoreOptions) -> RemoteStorageManager:
    """The manager, configured; the same one for the same options as long as the process lives. Errors: InvalidOption"""
    found = _OPEN.get(options.key)
    if found is None:
        found = new_store(options)
        _OPEN[options.key] = found
    return found


def new_store(options: StoreOptions) -> RemoteStorageManager:
    """One of the caller's own, which closes it. Errors: InvalidOption."""
    try:
        storage = storage_manager(options.class_name)
    except PluginError as error:
        raise InvalidOption(
            str(error), remedy="set remote.log.storage.manager.class.name as in the broker's settings"
        ) from error
    try:
        storage.configure(options.configs)
    except ValueError as error:
        raise InvalidOption(
            f"the store's settings: {error}", remedy="give rsm.config.* as in the broker's settings"
        ) from error
    return storage
