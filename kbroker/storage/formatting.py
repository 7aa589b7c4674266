"""Formatting a log directory: its path, its lock, its identity and its first reserve. Its small files:

    meta.properties         the identity of the log directory
    partition.metadata      the topic id of a partition's directory
    .kafka_cleanshutdown    the clean-shutdown marker

Source  MetaProperties, PartitionMetadataFile, CleanShutdownFileHandler of Apache Kafka 4.3.1
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import Final, NamedTuple

from kbroker.runtime.ports import Disk, File
from kbroker.storage.checkpoint import parse_number, read_file, write_atomically
from kbroker.storage.directory_names import CLEAN_SHUTDOWN, LOCK
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.reserve import SpaceReserve
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_from_text, uuid_to_text

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"


def lock(disk: Disk, path: str) -> tuple[File, bool]:
    """Make and lock a log directory; returns the lock and whether the directory is new. Errors: KAFKA_STORAGE_ERROR."""
    try:
        _make_with_parents(disk, path)
        is_new = not disk.exists(f"{path}/{META_PROPERTIES}")
        if is_new:
            # New, or left by an interrupted first start. Its own name has to be durable before its contents.
            sync_names(disk, path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))
        return disk.lock(f"{path}/{LOCK}"), is_new
    except BlockingIOError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"another broker is running on {path}") from error
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot use {path}: {error.strerror or error}") from error


def _make_with_parents(disk: Disk, path: str) -> None:
    if not disk.exists(path):
        parent = path.rpartition("/")[0]
        if parent:
            _make_with_parents(disk, parent)
        disk.make_directory(path)


def identify(
    disk: Disk, path: str, *, node_id: int, cluster_id: str | None, new_cluster_id: str, directory_id: uuid.UUID
) -> DirectoryIdentity:
    """Read meta.properties, or write it into a new directory. Errors: OSError; see `LogDirectory`."""
    file_path = f"{path}/{META_PROPERTIES}"
    try:
        identity = parse_identity(read_file(disk, file_path).decode())
    except FileNotFoundError:
        identity = DirectoryIdentity(cluster_id or new_cluster_id, node_id, directory_id)
        write_atomically(disk, file_path, format_identity(identity).encode())
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{file_path} cannot be read: {error}") from error
    if identity.node_id != node_id:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{path} belongs to node {identity.node_id}, but this is node {node_id}"
        )
    if cluster_id is not None and identity.cluster_id != cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"{path} belongs to cluster {identity.cluster_id}, not {cluster_id}"
        )
    return identity


def make_first_reserve(reserve: SpaceReserve, disk: Disk, path: str) -> None:
    """Errors: OSError; KAFKA_STORAGE_ERROR if the disk is too small."""
    try:
        reserve.make()
    except OSError as error:
        if not lacks_space(error):
            raise
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{path} has {disk.free_bytes(path)} bytes free, but {reserve.size_bytes} are reserved for deleting topics "
            "on a full disk: free some space, or lower kbroker.metadata.reserve.bytes",
        ) from error


# --- the small files ---


class DirectoryIdentity(NamedTuple):
    """The contents of `meta.properties`."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def format_identity(identity: DirectoryIdentity) -> str:
    return (
        f"version=1\ncluster.id={identity.cluster_id}\nnode.id={identity.node_id}\n"
        f"directory.id={uuid_to_text(identity.directory_id)}\n"
    )


def parse_identity(text: str) -> DirectoryIdentity:
    """Parse the text of a `meta.properties` file of kbroker or Apache Kafka; ValueError if it is malformed."""
    values = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith(("#", "!")):
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    try:
        if values["version"] != "1":
            raise ValueError(f"version {values['version']}, expected 1")
        return DirectoryIdentity(
            values["cluster.id"], parse_number(values["node.id"], bits=32), uuid_from_text(values["directory.id"])
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from error


def format_partition_metadata(topic_id: uuid.UUID) -> str:
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"


def parse_partition_metadata(text: str) -> uuid.UUID:
    """Parse the text of `partition.metadata` into the topic id; ValueError if it is malformed."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if values.get("version") != "0":
        raise ValueError(f"version {values.get('version')}, expected 0")
    return uuid_from_text(values.get("topic_id", ""))


def read_clean_shutdown(disk: Disk, path: str) -> int:
    """The broker epoch in the clean-shutdown marker, -1 if it has none. Errors: OSError."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        epoch = json.loads(read_file(disk, f"{path}/{CLEAN_SHUTDOWN}"))["brokerEpoch"]
        return parse_number(str(epoch))
    return -1


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(disk, f"{path}/{CLEAN_SHUTDOWN}", marker.encode())
