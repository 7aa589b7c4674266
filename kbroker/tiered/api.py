"""The two plug-in contracts of tiered storage: where the bytes of segments go, and who knows which are there.

A plug-in sees the bytes of a segment and of its indexes, and the metadata that name it; never a request, never a
record. Whoever writes one derives from nothing: the Protocols below are all there is to satisfy, and
`kbroker.testing.remote_storage` is what every RemoteStorageManager must pass.

Identity is the topic's id and a random id for each attempt to upload: names are for humans, and an upload that was cut
short never meets its successor.

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
    """A partition by its topic's id; the name is for humans, and for names of objects."""

    topic_id: UUID
    topic: str
    partition: int


class RemoteLogSegmentId(NamedTuple):
    """One attempt to upload one segment."""

    topic_id_partition: TopicIdPartition
    id: UUID


class RemoteLogSegmentState(IntEnum):
    """0 -> 1 -> 2 -> 3, and 0 -> 2 for a copy that failed; a state may be told again."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """The life of a deletion of a whole partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """What is known of one segment in the tier.

    Units      offsets count records and both are inclusive; *_ms is wall time
    Shape      segment_leader_epochs is (leader_epoch, start_offset) in ascending order: each epoch that has records in
               the segment, the first one from start_offset on
    Note       custom_metadata is what the storage manager returned for the copy, None until it is finished;
               txn_index_empty says that nobody need look for aborted transactions here
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[tuple[int, int], ...]
    segment_size_in_bytes: int
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A new state of a segment that is known already."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A step in the deletion of a whole partition. Nothing in Kafka writes one so far; they are read and kept."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of a closed segment, as paths, and the leader epochs up to its end as the text of their checkpoint.

    Note  transaction_index is None where the segment has none, or an empty one
    """

    log_segment: str
    offset_index: str
    time_index: str
    transaction_index: str | None
    producer_snapshot_index: str
    leader_epoch_index: bytes


class IndexType(Enum):
    """What is stored beside a segment; the value ends the names of files and objects."""

    OFFSET = "index"
    TIMESTAMP = "timeindex"
    PRODUCER_SNAPSHOT = "snapshot"
    TRANSACTION = "txnindex"
    LEADER_EPOCH = "leader-epoch-checkpoint"


class RemoteStorageError(Exception):
    """The tier did not do it. After a failed copy what is there of it is deleted, and the next round begins anew."""


class RetriableRemoteStorageError(RemoteStorageError):
    """The tier cannot do it now (it is down, slow, or asks for patience). Nothing is wrong with what is there."""


class StoreMisconfigured(RetriableRemoteStorageError):
    """The store answers and refuses: a setting is wrong, or keys are. Once the operator has mended it the same call
    succeeds, without a restart where the mending is in the store or in a file of keys.
    """


class RemoteResourceNotFound(RemoteStorageError):
    """There is no such segment or index in the tier."""


class RemoteObjectDamaged(RemoteStorageError):
    """What the tier has of a segment is not what was copied there: its size tells."""


class RemoteStorageManager(Protocol):
    """Where the bytes go. Blocking, and called in several threads at once, for different segments and the same one.

    A manager is made without arguments, configured once, and closed at the end. Every call ends within a bounded time,
    whatever the store does. Secrets of its configuration appear in no message and no representation.
    Errors  RemoteStorageError from everything but close; RetriableRemoteStorageError for what may pass by itself
    """

    def configure(self, configs: Mapping[str, str]) -> None:
        """Take the settings below `rsm.config.`, without the prefix, and those that kbroker adds: `log.dir` is the data
        directory, `broker.id` and `cluster.id` say who asks. Unknown keys are an error. Does not touch the store: it
        may be down.
        """
        ...

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Store a segment and its indexes; when this returns they are durable and what was sent has been verified.

        The bytes returned are kept in the metadata and come back with every later call. The same id again replaces
        what was there. A copy that failed may leave a part, which `delete_log_segment_data` removes.
        """
        ...

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        """A stream of the bytes from start_position to end_position, both inclusive, or to the segment's end, at which
        a larger end_position is cut off. The caller closes it. A stream that ends early raises an error or is short.

        Errors  RemoteResourceNotFound; ValueError for positions outside the segment
        """
        ...

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """All of one index. Errors: RemoteResourceNotFound, which of a transaction index means that it is empty."""
        ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove a segment, its indexes and whatever a copy left half done. What is not there is deleted already."""
        ...

    def close(self) -> None:
        """Let go of connections and threads; harmless when repeated."""
        ...


class StoredObject(NamedTuple):
    """One object of a store, as its list tells it.

    Shape  segment_id and index_type (None: the segment itself) are read from its name; None in both for a name that no
           version of the manager gives
    Note   is_auxiliary: it belongs to a copy of the segment, but is none of its files: a manifest, or what a copy left
           half done
    """

    name: str
    size: int
    modified_ms: int
    topic_id: UUID | None
    segment_id: UUID | None
    index_type: IndexType | None
    is_auxiliary: bool = False


class CheckedRemoteStorageManager(RemoteStorageManager, Protocol):
    """One that can be asked at the start of a broker whether its store can be used."""

    def check_store(self) -> None:
        """Ask the store something cheap. The message of an error names the settings to look at.

        Errors  StoreMisconfigured where the store says that a setting is wrong
        """
        ...


class ListingRemoteStorageManager(RemoteStorageManager, Protocol):
    """One that can also say what it holds, for `kbroker tier scrub`. A list may be stale: it is no authority."""

    def list_objects(self) -> Iterable[StoredObject]:
        """Everything below the prefix of this store."""
        ...


class LimitedRemoteStorageManager(RemoteStorageManager, Protocol):
    """One that knows before a copy begins whether there is room for it. Of a copy without room nothing is noted."""

    def expect_room(self, size_in_bytes: int) -> None:
        """Errors: RetriableRemoteStorageError while a copy of a segment of this size does not fit."""
        ...


class DescribedRemoteStorageManager(ListingRemoteStorageManager, Protocol):
    """One whose store says itself what it holds, for who has no metadata topic at hand."""

    def read_manifest(self, name: str) -> bytes:
        """An auxiliary object by the name that the list gave: JSON as in `kbroker.tiered.layout.Manifest`.

        Errors  RemoteResourceNotFound for one that has gone meanwhile
        """
        ...


class RemoteLogMetadataManager(Protocol):
    """Who knows what is in the tier. The questions are answered from memory; a change returns once it is durable and
    seen by the questions.

    Errors  RetriableRemoteStorageError where it is not ready, or a change could not be stored
    """

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Note that a copy begins: the state is COPY_SEGMENT_STARTED."""
        ...

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Note a later state. Errors: RemoteResourceNotFound (no such segment), ValueError (no such transition)."""
        ...

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Note a step in the deletion of a partition."""
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` as it was written in `leader_epoch`."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment from `offset` on in this epoch that may have a transaction index."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The last offset of this epoch in a finished segment."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Those that are not deleted, in every state, unreferenced ones included; of one epoch by start_offset, of all
        in no order.
        """
        ...

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        """Bytes of the segments that list_remote_log_segments gives for the epoch."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether what was known when the partition was taken on has been read."""
        ...

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once is_ready; a partition that is not followed (any more) is a RemoteStorageError."""
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
        """Write down what spares the next start its reading."""
        ...
