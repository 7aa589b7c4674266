"""What the tier needs of those above it: partitions, their locks, and the internal topic.

Declared here and satisfied by `kbroker.replication.partition.Partition` and `kbroker.broker.Broker`, so that the tier
can be run in tests with nothing but logs.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        """None where this broker does not lead."""
        ...

    @property
    def known_high_watermark(self) -> int: ...


class PartitionWriter(Protocol):
    """What the tier does to partitions."""

    def find_partition(self, key: TopicPartition) -> PartitionReader | None:
        """The partition that this broker holds under this name and number."""
        ...

    def held_partitions(self) -> Iterable[PartitionReader]: ...

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Hold off appends, truncations and the like that take more than one step, and the removal of the log."""
        ...

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Hold off the removal of the log alone: appends go on."""
        ...

    def wake(self, key: TopicPartition) -> None:
        """Offsets of the partition moved: who waits on it looks again."""
        ...

    async def write_log_starts(self) -> None:
        """Make the log start offsets durable. Errors: KafkaError KAFKA_STORAGE_ERROR."""
        ...


class MetadataTopic(Protocol):
    """`__remote_log_metadata` as its manager sees it."""

    async def ensure(self) -> int:
        """Have the topic, made if need be; how many partitions it has. Errors: KafkaError; the caller tries again."""
        ...

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append records with null keys, as one batch, and wait until they are committed; the first one's offset.

        Errors  KafkaError
        """
        ...

    def log(self, partition: int) -> Log | None:
        """The local log of one of its partitions, for reading; None while there is none."""
        ...

    def high_watermark(self, partition: int) -> int: ...

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Return once the high watermark lies beyond `offset`, or the partition is no longer here."""
        ...
