"""The two plug-in contracts of tiered storage: a storage manager for segment bytes, and a metadata manager for them.

A storage plug-in handles the bytes of segments and indexes and the metadata that identify them. It never sees a request
or a record. A plug-in needs no base class: it has to satisfy the Protocols below. Every RemoteStorageManager must pass
`kbroker.testing.remote_storage`.

A segment is identified by the topic id and by a random id for each upload attempt. Names are for humans. A failed
upload and the next attempt therefore never share an id.

Source  KIP-405 (RemoteStorageManager, RemoteLogMetadataManager), KIP-1058 (empty transaction indexes), Apache Kafka
        4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import BinaryIO, NamedTuple, Protocol
from uuid import UUID


class TopicIdPartition(NamedTuple):
    """A partition, identified by its topic's id. The topic name is for humans and for object names."""

    topic_id: UUID
    topic: str
    partition: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class RemoteLogSegmentId(NamedTuple):
    """One attempt to upload one segment."""

    topic_id_partition: TopicIdPartition
    id: UUID


class RemoteLogSegmentState(IntEnum):
    """Allowed transitions: 0 -> 1 -> 2 -> 3, and 0 -> 2 for a failed copy. A state may be reported repeatedly."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """The metadata of one segment in the tier.

    Units      offsets count records and both are inclusive; *_ms is wall time
    Shape      segment_leader_epochs is (leader_epoch, start_offset) in ascending order: each epoch that has records in
               the segment; the first entry starts at start_offset
    Note       custom_metadata is what the storage manager returned for the copy, None until the copy is finished;
               txn_index_empty means that the segment has no aborted transactions
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[tuple[int, int], ...]
    segment_size_in_bytes: int
    state: RemoteLogSegmentState = STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A new state of a known segment."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of a closed segment as paths, and its leader epochs up to its end as the text of their checkpoint.

    Note  transaction_index is None if the segment has no transaction index, or an empty one
    """

    log_segment: str
    offset_index: str
    time_index: str
    transaction_index: str | None
    producer_snapshot_index: str
    leader_epoch_index: bytes


class IndexType(Enum):
    """The index files of a segment. The value is the suffix of file and object names."""

    OFFSET = "index"
    TIMESTAMP = "timeindex"
    PRODUCER_SNAPSHOT = "snapshot"
    TRANSACTION = "txnindex"
    LEADER_EPOCH = "leader-epoch-checkpoint"


class RemoteStorageError(Exception):
    """A tier operation failed. After a failed copy the broker deletes the partial copy; the next round starts over."""


class RetriableRemoteStorageError(RemoteStorageError):
    """The tier cannot do the operation now (it is down, slow, or throttling). The stored data are intact."""


class StoreMisconfigured(RetriableRemoteStorageError):
    """The store answers with a refusal: a setting or the keys are wrong. After the operator corrects this, the same
    call succeeds. No restart is needed if the correction is in the store or in a credentials file.
    """


class RemoteResourceNotFound(RemoteStorageError):
    """The tier has no such segment or index."""


class RemoteObjectDamaged(RemoteStorageError):
    """The stored segment differs from the copied one: its size is wrong."""


class RemoteStorageManager(Protocol):
    """Stores segment bytes. All methods block. Several threads call them at once, for different or the same segment.

    The broker creates a manager without arguments, configures it once, and closes it at the end. Every call returns
    within a bounded time, whatever the store does. Messages and representations contain no secrets.
    Errors  RemoteStorageError from everything but close; RetriableRemoteStorageError for temporary failures
    """

    def configure(self, configs: Mapping[str, str]) -> None:
        """Take the settings below `rsm.config.`, without the prefix, and those that kbroker adds: `log.dir` (the data
        directory), `broker.id` and `cluster.id`. Unknown keys are an error. Does not contact the store, which may be
        down.
        """
        ...

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Store a segment and its indexes. On return they are durable, and the stored data were verified.

        The broker keeps the returned bytes in the metadata and passes them to every later call. A copy with the same
        id replaces the earlier one. A failed copy may leave objects, which `delete_log_segment_data` removes.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        """A stream of the bytes from start_position to end_position, both inclusive, or to the segment's end. A larger
        end_position is clamped to the segment's end. The caller closes the stream. If the stream ends early, it
        raises an error or is short.

        Errors  RemoteResourceNotFound; ValueError for positions outside the segment
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """The whole index. Errors: RemoteResourceNotFound; for a transaction index it means that the index is empty."""
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove a segment, its indexes and leftovers of failed copies. Succeeds if they do not exist."""
        ...

    def close(self) -> None:
        """Close connections and threads. May be called repeatedly."""
        ...


class StoredObject(NamedTuple):
    """One object of a store, as listed.

    Shape  segment_id and index_type (None for the segment itself) are parsed from the name; both are None if no
           version of the manager writes such a name
    Note   is_auxiliary: the object belongs to a copy of the segment but is none of its files: a manifest, or a
           leftover of a failed copy
    """

    name: str
    size: int
    modified_ms: int
    topic_id: UUID | None
    segment_id: UUID | None
    index_type: IndexType | None
    is_auxiliary: bool = False


class CheckedRemoteStorageManager(RemoteStorageManager, Protocol):
    """A manager that can check at broker start whether its store is usable."""

    def check_store(self) -> None:
        """Make one cheap request to the store. The error message names the settings to check.

        Errors  StoreMisconfigured if the store reports a wrong setting
        """
        ...

    def check_writes(self) -> None:
        """Write and delete a small object, when a topic becomes tiered. A manager may lack this."""
        ...


class ListingRemoteStorageManager(RemoteStorageManager, Protocol):
    """A manager that can list its objects, for `kbroker tier scrub`. A list may be stale and is not authoritative."""

    def list_objects(self) -> Iterable[StoredObject]:
        """All objects below the prefix of this store."""
        ...


class LimitedRemoteStorageManager(RemoteStorageManager, Protocol):
    """A manager that checks for free space before a copy starts. Without space, the broker writes no metadata."""

    def expect_room(self, size_in_bytes: int) -> None:
        """Errors: RetriableRemoteStorageError while there is no space for a segment of this size."""
        ...


class DescribedRemoteStorageManager(ListingRemoteStorageManager, Protocol):
    """A manager whose store describes its own content, for callers that have no metadata topic."""

    def read_manifest(self, name: str) -> bytes:
        """An auxiliary object by its listed name: JSON as in `kbroker.tiered.layout.Manifest`.

        Errors  RemoteResourceNotFound if the object was deleted since it was listed
        """
        ...


class RemoteLogMetadataManager(Protocol):
    """Keeps the metadata of the segments in the tier. Queries are answered from memory. An update returns once it is
    durable and visible to queries.

    Errors  RetriableRemoteStorageError if the manager is not ready, or an update could not be stored
    """

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record that a copy starts: the state is COPY_SEGMENT_STARTED."""
        ...

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Record a later state. Errors: RemoteResourceNotFound (no such segment), ValueError (no such transition)."""
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that contains `offset` as written in `leader_epoch`."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment at or after `offset` in this epoch that may have a transaction index."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The last offset of this epoch in a finished segment."""
        ...

    def list_remote_log_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """The segments that are not deleted, in every state and any order, including unreferenced ones."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the manager has read all metadata that existed when it started to follow the partition."""
        ...

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once is_ready. Raises RemoteStorageError for a partition that is not followed (any more)."""
        ...

    async def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Follow these partitions from now on."""
        ...

    async def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forget these partitions."""
        ...

    async def close(self) -> None:
        """Store what the next start would otherwise have to read again."""
        ...
