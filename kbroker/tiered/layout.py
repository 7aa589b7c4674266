"""The object names of segments in a store, and the manifest that describes a segment.

    orders-kS2mDpo7RkS0cUkCAYyBDA/3/00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA.log
    topic  its id                 |  first offset        id of this copy        kind
                                  partition

The kind is `log`, the value of an IndexType, or `manifest.json`. Names are for humans, for listing and for sorting; the
broker never looks up unknown segments by name. The topic name is quoted, so that it cannot lead out of the store, and
truncated to a maximum length; the topic id keeps names unique.

A segment that was attached from another cluster keeps its objects. Its own metadata have a new segment id, and name the
objects in their custom metadata; see AttachedObjects. Such objects are never deleted.

The manifest is written last. It has the segment's metadata from the metadata topic, so that a store can be adopted
without that topic, and the size and CRC-32C of each object, to detect damage. Data that can be read without the
manifest do not depend on it.

Source  KIP-405; Apache Kafka's LocalTieredStorage for the parts of the names
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

from kbroker.tiered.api import (
    FINISHED,
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    StoredObject,
    TopicIdPartition,
)
from wire.types import uuid_from_text, uuid_to_text

SEGMENT: Final = "log"
MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
PROBE: Final = "kbroker-probe"
"""Begins the name of the object with which a broker checks whether it may write."""
MAX_TOPIC_BYTES: Final = 200  # of a quoted name; with "-" and an id it stays below the 255 of a file's name

_ATTACHED: Final = "kbroker-attached:"

_ID: Final = r"[A-Za-z0-9_-]{22}"
_NAME: Final = re.compile(
    rf"(?P<topic>[^/]*)-(?P<topic_id>{_ID})/(?P<partition>\d{{1,10}})"
    rf"/(?P<start_offset>\d{{20}})-(?P<segment_id>{_ID})\.(?P<kind>[a-z.-]+)"
)
_INDEX_TYPES: Final = {index_type.value: index_type for index_type in IndexType}


def kind_of(index_type: IndexType | None) -> str:
    """The suffix of the name of this index, or of the segment itself (None)."""
    return SEGMENT if index_type is None else index_type.value


KINDS: Final = (SEGMENT, *_INDEX_TYPES, MANIFEST)
"""All objects that a copy may create, in the order in which they are stored."""


def topic_in_names(topic: str) -> str:
    """The topic name as used in object names: quoted, and truncated if it is too long."""
    return quote(topic, safe="", errors="surrogatepass")[:MAX_TOPIC_BYTES]


def partition_prefix(partition: TopicIdPartition) -> str:
    """The common prefix of the names of all objects of a partition, without the last slash."""
    return f"{topic_in_names(partition.topic)}-{uuid_to_text(partition.topic_id)}/{partition.partition}"


def object_name(metadata: RemoteLogSegmentMetadata, kind: str) -> str:
    """The name of one object of a segment; `kind` is one of KINDS. Errors: as AttachedObjects.of."""
    return f"{object_stem(metadata)}.{kind}"


class AttachedObjects(NamedTuple):
    """What the custom metadata of an attached segment say about the objects of the segment that it was made of.

    Shape  stem is what their names begin with; open are the transactions that are open at the end of the attached
           part, as producer id and first offset
    Units  size_bytes is the size of the log, of which the attached part may be less
    """

    stem: str
    size_bytes: int
    open: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        opened = ",".join(f"{producer_id}@{first_offset}" for producer_id, first_offset in self.open)
        return f"{_ATTACHED}{self.stem} {self.size_bytes} {opened}".encode()

    @classmethod
    def of(cls, metadata: RemoteLogSegmentMetadata) -> AttachedObjects | None:
        """None for a segment that is not attached. Errors: RemoteStorageError if its metadata are not possible."""
        if not is_attached(metadata):
            return None
        assert metadata.custom_metadata is not None
        try:
            stem, size, opened = metadata.custom_metadata.decode().removeprefix(_ATTACHED).split(" ")
            # Any client may write to the metadata topic, so a name may try to lead out of the store.
            if parse_object_name(f"{stem}.{SEGMENT}") is None:
                raise ValueError(f"{stem!r} is not the name of a segment")
            pairs = [one.split("@") for one in opened.split(",") if one]
            return cls(stem, int(size), tuple((int(producer_id), int(offset)) for producer_id, offset in pairs))
        except ValueError as error:
            segment_id = metadata.remote_log_segment_id.id
            raise RemoteStorageError(f"the attached segment {segment_id} cannot be used: {error}") from error


def is_attached(metadata: RemoteLogSegmentMetadata) -> bool:
    """Whether a segment's objects are not its own, so that nothing may delete them; also if their names are damaged."""
    return metadata.custom_metadata is not None and metadata.custom_metadata.startswith(_ATTACHED.encode())


def object_stem(metadata: RemoteLogSegmentMetadata) -> str:
    """The names of a segment's objects without the kind. Errors: as AttachedObjects.of."""
    objects = AttachedObjects.of(metadata)
    if objects is not None:
        return objects.stem
    segment_id = metadata.remote_log_segment_id
    prefix = partition_prefix(segment_id.topic_id_partition)
    return f"{prefix}/{metadata.start_offset:020d}-{uuid_to_text(segment_id.id)}"


def stored_id(metadata: RemoteLogSegmentMetadata) -> UUID:
    """The segment id in the names of a segment's objects. Errors: as AttachedObjects.of."""
    parsed = parse_object_name(f"{object_stem(metadata)}.{SEGMENT}")
    assert parsed is not None
    return parsed.segment_id


def stored_size(metadata: RemoteLogSegmentMetadata) -> int:
    """The size of the stored log, in bytes. Errors: as AttachedObjects.of."""
    objects = AttachedObjects.of(metadata)
    return metadata.segment_size_in_bytes if objects is None else objects.size_bytes


class ObjectName(NamedTuple):
    """A parsed name. Shape: kind is what follows the segment's id, known or not; topic may be truncated."""

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    segment_id: UUID
    kind: str

    @property
    def index_type(self) -> IndexType | None:
        return _INDEX_TYPES.get(self.kind)


def parse_object_name(name: str) -> ObjectName | None:
    """Parse a name; None if `object_name` does not create such names. Unknown kinds are accepted."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        topic_id, segment_id = uuid_from_text(found["topic_id"]), uuid_from_text(found["segment_id"])
    except ValueError:
        return None
    return ObjectName(
        found["topic"], topic_id, int(found["partition"]), int(found["start_offset"]), segment_id, found["kind"]
    )


def stored_object(name: str, size: int, modified_ms: int) -> StoredObject:
    """A listed object, described by what its name says."""
    parsed = parse_object_name(name)
    if parsed is None:
        return StoredObject(name, size, modified_ms, None, None, None)
    segment_id = parsed.segment_id if parsed.kind in KINDS else None
    is_manifest = parsed.kind == MANIFEST
    return StoredObject(name, size, modified_ms, parsed.topic_id, segment_id, parsed.index_type, is_manifest)


def sources(data: LogSegmentData) -> dict[str, str | bytes]:
    """The objects of a segment by kind: the path or the content of each."""
    found: dict[str, str | bytes] = {
        SEGMENT: data.log_segment,
        IndexType.OFFSET.value: data.offset_index,
        IndexType.TIMESTAMP.value: data.time_index,
        IndexType.PRODUCER_SNAPSHOT.value: data.producer_snapshot_index,
        IndexType.LEADER_EPOCH.value: data.leader_epoch_index,
    }
    if data.transaction_index is not None:
        found[IndexType.TRANSACTION.value] = data.transaction_index
    return found


class StoredFile(NamedTuple):
    """One object of a segment as it was sent. Units: size in bytes."""

    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a stored segment, independent of the metadata topic.

    Shape  files maps kinds (see KINDS, without the manifest) to the size and checksum of what was stored
    """

    metadata: RemoteLogSegmentMetadata
    cluster_id: str
    files: Mapping[str, StoredFile]

    def to_bytes(self) -> bytes:
        """JSON, for machines and for humans."""
        metadata = self.metadata
        partition = metadata.remote_log_segment_id.topic_id_partition
        document = {
            "version": MANIFEST_VERSION,
            "cluster_id": self.cluster_id,
            "topic": partition.topic,
            "topic_id": uuid_to_text(partition.topic_id),
            "partition": partition.partition,
            "segment_id": uuid_to_text(metadata.remote_log_segment_id.id),
            "start_offset": metadata.start_offset,
            "end_offset": metadata.end_offset,
            "max_timestamp_ms": metadata.max_timestamp_ms,
            "broker_id": metadata.broker_id,
            "event_timestamp_ms": metadata.event_timestamp_ms,
            "segment_leader_epochs": [list(entry) for entry in metadata.segment_leader_epochs],
            "segment_size_in_bytes": metadata.segment_size_in_bytes,
            "txn_index_empty": metadata.txn_index_empty,
            "files": {kind: {"size": file.size, "crc32c": file.crc32c} for kind, file in self.files.items()},
        }
        return (json.dumps(document, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Errors: RemoteStorageError if the bytes are not a manifest of a known version."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document["version"] != MANIFEST_VERSION:
                raise ValueError(f"version {document['version']!r}, expected {MANIFEST_VERSION}")
            topic = document["topic"]
            if not isinstance(topic, str):
                raise ValueError(f"the topic {topic!r}")
            partition = TopicIdPartition(uuid_from_text(document["topic_id"]), topic, int(document["partition"]))
            metadata = RemoteLogSegmentMetadata(
                RemoteLogSegmentId(partition, uuid_from_text(document["segment_id"])),
                start_offset=int(document["start_offset"]),
                end_offset=int(document["end_offset"]),
                max_timestamp_ms=int(document["max_timestamp_ms"]),
                broker_id=int(document["broker_id"]),
                event_timestamp_ms=int(document["event_timestamp_ms"]),
                segment_leader_epochs=tuple(
                    (int(epoch), int(start)) for epoch, start in document["segment_leader_epochs"]
                ),
                segment_size_in_bytes=int(document["segment_size_in_bytes"]),
                state=FINISHED,
                txn_index_empty=bool(document["txn_index_empty"]),
            )
            files = {
                str(kind): StoredFile(int(file["size"]), int(file["crc32c"]))
                for kind, file in document["files"].items()
            }
            return cls(metadata, str(document["cluster_id"]), files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise RemoteStorageError(f"not a manifest: {error!r}") from error

    @classmethod
    def parse_named(cls, data: bytes, name: str) -> Manifest:
        """Parse the manifest with this name, for callers that know the segment only by its manifest.

        Errors  RemoteStorageError as above, and for the manifest of another segment or with impossible values
        """
        found = cls.parse(data)
        metadata = found.metadata
        epochs = metadata.segment_leader_epochs
        wide = (metadata.end_offset, metadata.max_timestamp_ms, metadata.event_timestamp_ms, *(at for _, at in epochs))
        partition = metadata.remote_log_segment_id.topic_id_partition.partition
        narrow = (partition, metadata.broker_id, metadata.segment_size_in_bytes, *(epoch for epoch, _ in epochs))
        if (
            not 0 <= metadata.start_offset <= metadata.end_offset
            or not epochs
            or not all(-1 << 63 <= number < 1 << 63 for number in wide)
            or not all(-1 << 31 <= number < 1 << 31 for number in narrow)
        ):
            raise RemoteStorageError("not a manifest: impossible values")
        own_name = object_name(metadata, MANIFEST)
        if own_name != name:
            raise RemoteStorageError(f"the manifest of another segment, {own_name}")
        return found
