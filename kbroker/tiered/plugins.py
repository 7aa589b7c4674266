"""Finds the managers that settings name: built-in names, entry points of installed packages, and importable classes.

    remote.log.storage.manager.class.name=minio                  a built-in name
    remote.log.storage.manager.class.name=acme                   an entry point of this name, of any installed package
    remote.log.storage.manager.class.name=acme.tier:Storage      a class (`acme.tier.Storage` means the same)

Entry points are in the groups `kbroker.remote_storage_managers` and `kbroker.remote_log_metadata_managers`. Built-in
names have precedence and need no installed metadata, so a checkout runs without installation and no package can replace
them. Names of Apache Kafka's Java classes are refused, with two exceptions: Kafka's topic-based metadata manager means
the built-in one, and for known storage managers the error names the built-in equivalent.

Source  KIP-405 for the settings; the packaging specification of entry points
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from kbroker.tiered.api import RemoteLogMetadataManager, RemoteStorageManager

STORAGE_GROUP: Final = "kbroker.remote_storage_managers"
METADATA_GROUP: Final = "kbroker.remote_log_metadata_managers"
DEFAULT_STORAGE: Final = "directory"
DEFAULT_METADATA: Final = "topic"

BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    STORAGE_GROUP: {
        "directory": "kbroker.tiered.local:LocalRemoteStorage",
        "minio": "kbroker.tiered.minio:MinioRemoteStorage",
    },
    METADATA_GROUP: {"topic": "kbroker.tiered.metadata_manager:TopicRemoteLogMetadataManager"},
}

_KAFKA_TOPIC_MANAGER: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"  # Kafka's default
)
_JAVA_PREFIXES: Final = ("org.", "io.aiven.", "com.", "net.", "io.confluent.")
_OURS_FOR: Final[Mapping[str, str]] = {
    "org.apache.kafka.server.log.remote.storage.LocalTieredStorage": "directory",
    "io.aiven.kafka.tieredstorage.RemoteStorageManager": "minio",
}


class PluginError(ValueError):
    """No manager can be loaded for this name; the message gives the reason and the available names."""


def storage_manager(name: str | None) -> RemoteStorageManager:
    """A new storage manager, not configured yet; None or "" means the directory. Errors: PluginError."""
    found = _find(name or DEFAULT_STORAGE, STORAGE_GROUP, "remote.log.storage.manager.class.name")
    return cast(RemoteStorageManager, _made(found, name or DEFAULT_STORAGE))


def metadata_manager_class(name: str | None) -> type[RemoteLogMetadataManager]:
    """The class of the metadata manager; None, "" and Kafka's default mean the built-in one. Errors: PluginError.

    Other classes are constructed with the same arguments: see `TopicRemoteLogMetadataManager`.
    """
    if not name or name == _KAFKA_TOPIC_MANAGER:
        name = DEFAULT_METADATA
    found = _find(name, METADATA_GROUP, "remote.log.metadata.manager.class.name")
    if not isinstance(found, type):
        raise PluginError(f"{name} is not a class")
    _check_methods(found, RemoteLogMetadataManager, name)
    return cast("type[RemoteLogMetadataManager]", found)


def names(group: str) -> list[str]:
    """The names that can be given in this group, except for classes."""
    return sorted({*BUILT_IN[group], *(point.name for point in entry_points(group=group))})


def _find(name: str, group: str, setting: str) -> Any:
    built_in = BUILT_IN[group].get(name)
    if built_in is not None:
        return _load(EntryPoint(name, built_in, group))
    found = list(entry_points(group=group, name=name))
    if len({point.value for point in found}) > 1:
        raise PluginError(
            f"{setting}={name} is ambiguous: it may be {' or '.join(sorted(point.value for point in found))}"
        )
    if found:
        return _load(found[0])
    module, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not separator or not module or not attribute:
        raise PluginError(f"{setting}={name}: there is no such manager; there are {', '.join(names(group))}")
    ours = _OURS_FOR.get(name)
    if ours is not None or _is_java(name):
        advice = f"; {setting}={ours} does the same here" if ours else ""
        raise PluginError(
            f"{setting}={name} is a Java class, which kbroker cannot load{advice}"
            f" (there are {', '.join(names(group))}, and Python classes as module:Class)"
        )
    return _load(EntryPoint(name, f"{module}:{attribute}", group))


def _is_java(name: str) -> bool:
    """Whether the name is a Java class: it has the prefix of a Java package, and Python finds no such package."""
    if not name.startswith(_JAVA_PREFIXES) or ":" in name:
        return False
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is None
    except (ImportError, ValueError):
        return True


def _load(point: EntryPoint) -> Any:
    """The object that an entry point names. If its module fails to import, the error says so."""
    try:
        return point.load()
    except (ImportError, SyntaxError, AttributeError) as error:
        raise PluginError(f"{point.name} cannot be loaded from {point.value}: {error}") from error


def _made(factory: Any, name: str) -> Any:
    try:
        made = factory()
    except TypeError as error:
        raise PluginError(f"{name} cannot be created without arguments: {error}") from error
    _check_methods(made, RemoteStorageManager, name)
    return made


def _check_methods(manager: object, contract: type, name: str) -> None:
    wanted = [method for method in vars(contract) if not method.startswith("_")]
    missing = [method for method in wanted if not callable(getattr(manager, method, None))]
    if missing:
        raise PluginError(f"{name} is not a {contract.__name__}: it has no {', '.join(missing)}")
