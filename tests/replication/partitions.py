"""Partitions with logs in memory, led by broker 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from kbroker.metadata.image import PartitionImage
from kbroker.replication.fetch_session import FetchedPartition
from kbroker.replication.fetching import FetchRound
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import Fetcher
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.testing.disk import SimulatedDisk
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

ONE = len(build_batch([Record(timestamp=1, value=b"x")]))
CONSUMER = Fetcher()


def placed(
    *,
    replicas: Sequence[int] = (1,),
    isr: Sequence[int] = (1,),
    leader: int = 1,
    epoch: int = 0,
    partition_epoch: int = 0,
) -> PartitionImage:
    """The metadata of a partition."""
    return PartitionImage(
        replicas=tuple(replicas),
        directories=tuple(UUID(int=replica) for replica in replicas),
        isr=tuple(isr),
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
    )


def partition(
    name: str = "t",
    *,
    image: PartitionImage | None = None,
    config: LogConfig | None = None,
    high_watermark: int = 0,
    broker_id: int = 1,
) -> Partition:
    """A partition on broker 1 or another one; broker 1 leads it unless `image` says otherwise."""
    disk = SimulatedDisk()
    disk.make_directory("/log")
    log = Log("/log", disk=disk, config=config or LogConfig(), topic=name, partition=0)
    made = Partition(
        broker_id=broker_id,
        topic=name,
        topic_id=UUID(int=1),
        index=0,
        log=log,
        checkpointed_high_watermark=high_watermark,
    )
    made.apply(image or placed())
    return made


def append(to: Partition, count: int = 1, *, value: bytes = b"x") -> None:
    """Append `count` batches of one record; each has ONE bytes unless another value is given."""
    for _ in range(count):
        to.log.append(build_batch([Record(timestamp=1, value=value)]), leader_epoch=to.leader_epoch, timestamp_ms=1)
        to.on_append()


def asking(
    name: str = "t", offset: int = 0, *, limit: int = 1 << 20, epoch: int = -1, last: int = -1
) -> FetchedPartition:
    """One partition of a Fetch."""
    return FetchedPartition(name, None, 0, offset, limit, epoch, last)


def round_over(
    held: Sequence[Partition],
    *asked: FetchedPartition,
    fetcher: Fetcher = CONSUMER,
    max_bytes: int = 1 << 30,
    min_bytes: int = 1,
) -> FetchRound:
    """A Fetch after its first read."""
    by_name = {one.topic: one for one in held}

    def find(wanted: FetchedPartition) -> Partition:
        assert wanted.name is not None
        if wanted.name not in by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return by_name[wanted.name]

    made = FetchRound([replace(one) for one in asked], find, fetcher=fetcher, max_bytes=max_bytes, min_bytes=min_bytes)
    if not made.read():
        made.read_blocking()
    made.set_unknown_aside()
    return made
