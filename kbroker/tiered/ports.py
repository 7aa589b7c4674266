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
    def last_stable_offset(self) -> int | None:
        """None if this broker is not the leader."""
        ...

    @property
    def known_high_watermark(self) -> int: ...


class PartitionWriter(Protocol):
    """What the tier does with partitions."""

    def find_partition(self, key: TopicPartition) -> PartitionReader | None:
        """The partition that this broker holds under this topic name and index."""
        ...

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Block appends, multi-step truncations and the like, and the removal of the log."""
        ...

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Block only the removal of the log; appends continue."""
        ...

    def wake(self, key: TopicPartition) -> None:
        """Wake the waiters of the partition: its offsets changed."""
        ...

    async def write_log_starts(self) -> None:
        """Make the log start offsets durable. Errors: KafkaError KAFKA_STORAGE_ERROR."""
        ...


class MetadataTopic(Protocol):
    """`__remote_log_metadata` as its manager sees it."""

    async def ensure(self) -> int:
        """Create the topic if needed, and return its number of partitions. Errors: KafkaError; the caller retries."""
        ...

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append records with null keys as one batch, wait until they are committed, and return the first offset.

        Errors  KafkaError
        """
        ...

    def log(self, partition: int) -> Log | None:
        """The local log of one of its partitions, for reading; None if there is none."""
        ...

    def is_in_sync(self, partition: int) -> bool:
        """Whether the local log of one of its partitions has all committed records."""
        ...

    def high_watermark(self, partition: int) -> int: ...

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Return once the high watermark is greater than `offset`, or the partition is no longer on this broker."""
        ...
