"""The interfaces that the tier needs from the broker: partitions, their locks, and the internal metadata topic.

`kbroker.replication.partition.Partition` and `kbroker.broker.Broker` satisfy them. Tests can therefore run the tier
with nothing but logs.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log
from kbroker.tiered.metadata_topic import Events
from kbroker.tiered.partition import RemotePartition


class PartitionReader(Protocol):
    """A partition as the tier sees it."""

    topic: str
    topic_id: UUID
    index: int
    key: TopicPartition
    log: Log
    leader_epoch: int
    remote: RemotePartition | None
    """Set while the topic is tiered here; only the remote log manager sets it."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def is_follower(self) -> bool: ...

    @property
    def last_stable_offset(self) -> int | None:
        """None if this broker is not the leader."""
        ...

    @property
    def known_high_watermark(self) -> int: ...

    @property
    def common_log_start_offset(self) -> int:
        """The log start offset that all in-sync replicas have reached."""
        ...

    def on_append(self) -> bool:
        """The leader's log has grown. Returns whether the high watermark rose."""
        ...


class PartitionWriter(Protocol):
    """What the tier does with partitions."""

    def find_partition(self, key: TopicPartition) -> PartitionReader | None:
        """The partition that this broker holds under this topic name and index."""
        ...

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Block appends, multi-step truncations and the like, and the removal of the log."""
        ...

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Block only the truncation and the removal of the log, which take `locked` first; appends continue."""
        ...

    def wake(self, key: TopicPartition) -> None:
        """Wake the waiters of the partition: its offsets changed."""
        ...

    async def write_log_starts(self) -> None:
        """Make the log start offsets durable. Errors: KafkaError KAFKA_STORAGE_ERROR."""
        ...


class MetadataTopic(Protocol):
    """`__remote_log_metadata` as its manager sees it."""

    @property
    def topic_id(self) -> UUID | None:
        """None while this broker knows no such topic."""
        ...

    async def ensure(self) -> int:
        """Create the topic if needed, and return its number of partitions. Errors: KafkaError; the caller retries."""
        ...

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append records with null keys as one batch, wait until they are committed, and return the first offset.

        Errors  KafkaError
        """
        ...

    def reader(self, partition: int) -> MetadataReader:
        """A reader of one partition. The caller closes it."""
        ...


class MetadataReader(Protocol):
    """Reads one partition of `__remote_log_metadata` from its leader, on whichever broker that is.

    Errors  KafkaError; the caller retries
    """

    @property
    def directory(self) -> str | None:
        """The directory of this broker's replica; None without one."""
        ...

    async def end_offset(self) -> int:
        """An offset below which all records are that were committed when the call began."""
        ...

    async def read(self, offset: int, leader_epoch: int, *, partition_count: int) -> Events | None:
        """The next events from `offset` on; none if there are none for a while. `leader_epoch` is the epoch of the
        last batch before `offset`. None if the log no longer has that batch: it was truncated.
        """
        ...

    async def has_batch(self, base_offset: int, crc: int) -> bool:
        """Whether the committed log has this batch, or starts after it."""
        ...

    def close(self) -> None: ...
