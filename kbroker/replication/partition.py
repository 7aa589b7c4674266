"""One partition as this broker holds it: its role, its log, and what may be read of it.

Theory of operation: the metadata says who leads a partition and at which leader epoch; this module holds the local
replica to that. Appends and reads are refused in the order in which Apache Kafka refuses them, so that a client
recovers the same way: not the leader, a fenced or unknown leader epoch, an offset out of range. Only the leader's
progress (see leader.py) moves the high watermark. A partition with one replica runs through the same code with
isr = {self}: a second broker adds followers, not a redesign.

Source: KIP-101, KIP-320, KIP-392, KIP-405, KIP-966.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kbroker.metadata.image import PartitionImage
from kbroker.replication.leader import LeaderProgress
from kbroker.storage.log import Log
from kbroker.storage.reading import LogSlice
from wire.errors import ErrorCode, KafkaError

NO_EPOCH = -1
CONSUMER = -1
DEBUGGING_CONSUMER = -2


class EpochEnd(NamedTuple):
    """Where a leader epoch ended: the largest epoch not above the one asked for, and the first offset after it."""

    leader_epoch: int
    end_offset: int


@dataclass(slots=True)
class PartitionRead:
    """What a Fetch of one partition found. Offsets were taken before the records were read, so they never run ahead.

    Units  offsets count records; size is in bytes
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: LogSlice | None = None
    diverging: EpochEnd | None = None
    leader_epoch: int = NO_EPOCH
    readable_end: int = 0
    """The offset up to which this fetcher may read; what it waits for lies from here on."""

    @property
    def size(self) -> int:
        """Bytes of records found."""
        return self.records.size if self.records is not None else 0


class Partition:
    """One partition on this broker.

    Errors  NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE,
            KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS
    """

    __slots__ = (
        "broker_id",
        "index",
        "isr",
        "key",
        "leader",
        "leader_epoch",
        "log",
        "partition_epoch",
        "progress",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, *, broker_id: int, topic: str, topic_id: UUID, index: int, log: Log) -> None:
        self.broker_id = broker_id
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.key = (topic, index)
        self.log = log
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.isr: frozenset[int] = frozenset()
        self.replicas: tuple[int, ...] = ()
        self.progress: LeaderProgress | None = None

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} leader_epoch={self.leader_epoch}>"

    # Roles

    def apply(self, image: PartitionImage, *, min_insync_replicas: int, checkpointed_high_watermark: int) -> bool:
        """Take over what the metadata says of this partition; True if the high watermark rose or the role changed."""
        was_leader, old_epoch = self.progress is not None, self.leader_epoch
        self.leader, self.leader_epoch = image.leader, image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.isr, self.replicas = frozenset(image.isr), tuple(image.replicas)
        if image.leader != self.broker_id:
            self.progress = None
            return was_leader
        if self.progress is not None and old_epoch == image.leader_epoch:
            self.progress.min_insync_replicas = min_insync_replicas
            self.progress.replica_count = len(self.replicas)
            return self.progress.on_isr_change(self.isr)
        # A new leadership: its epoch is noted before anything is appended in it, empty epochs included.
        end = self.log.log_end_offset
        self.log.assign_epoch(image.leader_epoch)
        known = self.progress.high_watermark if self.progress is not None else checkpointed_high_watermark
        self.progress = LeaderProgress(
            broker_id=self.broker_id,
            leader_epoch=image.leader_epoch,
            log_end_offset=end,
            high_watermark=min(max(known, self.log.log_start_offset), end),
            isr=self.isr,
            min_insync_replicas=min_insync_replicas,
            replica_count=len(self.replicas),
            epoch_start_offset=end,
        )
        return True

    def set_min_insync_replicas(self, count: int) -> bool:
        """Take over a changed min.insync.replicas; True if the high watermark rose."""
        if self.progress is None or self.progress.min_insync_replicas == count:
            return False
        self.progress.min_insync_replicas = count
        return self.progress.on_isr_change(self.isr)

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.progress is not None

    def leading(self, current_leader_epoch: int = NO_EPOCH) -> LeaderProgress:
        """The leader's progress, or the error that a client of this request is to get.

        Errors  KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
        """
        if self.log.state.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {self.topic}-{self.index} is offline"
            )
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"{current_leader_epoch=}, ours is {self.leader_epoch}")
        if self.progress is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is led by {self.leader}")
        return self.progress

    # Offsets

    @property
    def high_watermark(self) -> int:
        """The offset below which consumers may read."""
        return self.leading().high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided."""
        high_watermark = self.leading().high_watermark
        unstable = self.log.producers.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def readable_end(self, *, replica_id: int, read_committed: bool) -> int:
        """The offset up to which this reader may read."""
        high_watermark = self.leading().high_watermark
        if replica_id >= 0:
            return self.log.log_end_offset
        return self.last_stable_offset if read_committed else high_watermark

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """Where leader_epoch ended in this log (KIP-101, KIP-279); None when the log does not know."""
        found_epoch, end_offset = self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)
        return None if found_epoch == NO_EPOCH else EpochEnd(found_epoch, end_offset)

    # Reading

    def read(
        self,
        *,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        replica_id: int = CONSUMER,
        read_committed: bool = False,
        at_least_one_batch: bool = True,
    ) -> PartitionRead:
        """Read whole batches from the one that holds fetch_offset, at most max_bytes unless at_least_one_batch.

        Errors  those of `leading`, OFFSET_OUT_OF_RANGE
        Source  KIP-227, KIP-320, KIP-595 (diverging epochs)
        """
        progress = self.leading(current_leader_epoch)
        log = self.log
        if replica_id >= 0 and (replica_id not in self.replicas or replica_id == self.broker_id):
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if current_leader_epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"{replica_id=} is no follower of {self.topic}-{self.index}")
        end = self.readable_end(replica_id=replica_id, read_committed=read_committed)
        found = PartitionRead(
            progress.high_watermark,
            self.last_stable_offset,
            log.log_start_offset,
            leader_epoch=self.leader_epoch,
            readable_end=end,
        )
        if last_fetched_epoch != NO_EPOCH:
            epoch_end = self.end_of_epoch(last_fetched_epoch)
            if epoch_end is None:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known of {last_fetched_epoch=}")
            if epoch_end.leader_epoch < last_fetched_epoch or epoch_end.end_offset < fetch_offset:
                found.diverging = epoch_end
                return found
        if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{fetch_offset=} is outside {log.log_start_offset}..{log.log_end_offset}",
            )
        if fetch_offset < end:
            found.records = log.read(
                fetch_offset, max_bytes=max_bytes, end_offset=end, at_least_one_batch=at_least_one_batch
            )
        return found
