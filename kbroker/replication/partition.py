"""One partition on this broker: its role, its log, and reads from it.

Theory of operation: the metadata gives each partition's leader and leader epoch. `Partition.apply` takes each change
and makes this broker the partition's leader, a follower, or neither; nothing else changes the role. Appends and reads
are refused in the same order as in Apache Kafka, so that clients recover the same way: not the leader, a fenced or
unknown leader epoch, an offset out of range. On the leader only its progress (see leader.py) moves the high watermark;
a follower takes it from the leader's answers (see follower.py). A partition with one replica uses the same code with
isr = {self}.

Metadata with an older partition epoch change nothing: the answer to a proposed ISR may arrive before the metadata.

Source: KIP-101, KIP-320, KIP-392, KIP-405, KIP-497, KIP-966.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kbroker.metadata.image import PartitionImage
from kbroker.replication.isr import IsrProposal, LiveBrokers, Verdict, verdict
from kbroker.replication.leader import DEFAULT_LAG_TIME_MAX_MS, UNKNOWN_OFFSET, FollowerState, LeaderProgress
from kbroker.runtime.net_ports import Pieces
from kbroker.runtime.ports import Buffer
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.files import FileRange
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.reading import Place
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition import AlterPartitionResponsePartition

if TYPE_CHECKING:
    from kbroker.tiered.indexes import AbortedTransaction
    from kbroker.tiered.partition import RemotePartition

NO_EPOCH: Final = -1
CONSUMER: Final = -1
FUTURE_REPLICA: Final = -3


class EpochEnd(NamedTuple):
    """The end of a leader epoch: the largest epoch not above the requested one, and the first offset after it."""

    leader_epoch: int
    end_offset: int


class Role(Enum):
    """The role of this broker for a partition, as the metadata assigns it."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class ReadsTo(Enum):
    """The end up to which a fetcher may read."""

    HIGH_WATERMARK = 0
    LAST_STABLE_OFFSET = 1
    LOG_END_OFFSET = 2


class Fetcher:
    """The sender of a Fetch: a consumer, or a replica with its id and epoch.

    Note  is_stale: the replica's epoch is older than that of the live broker with its id
    Note  is_replica: a follower, or a replica that moves between directories; the tier serves neither of them
    Note  may_read_follower: a consumer that may read from any replica (KIP-392)
    """

    __slots__ = (
        "is_follower", "is_replica", "is_stale", "may_read_follower", "reads_to", "replica_epoch", "replica_id",
    )  # fmt: skip

    def __init__(
        self,
        replica_id: int = CONSUMER,
        *,
        replica_epoch: int = NO_EPOCH,
        read_committed: bool = False,
        is_stale: bool = False,
        may_read_follower: bool = False,
    ) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.is_follower = replica_id >= 0
        self.is_stale = is_stale
        self.may_read_follower = may_read_follower
        self.is_replica = self.is_follower or replica_id == FUTURE_REPLICA
        if self.is_replica:
            self.reads_to = ReadsTo.LOG_END_OFFSET
        elif read_committed:
            self.reads_to = ReadsTo.LAST_STABLE_OFFSET
        else:
            self.reads_to = ReadsTo.HIGH_WATERMARK


@dataclass(slots=True, eq=False)
class PartitionRead:
    """The result of a Fetch of one partition. Offsets are taken before the records are read, so they are never ahead.

    Units  offsets count records; size is in bytes
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    readable_end: int
    """The offset up to which this fetcher may read; it waits for records from here on."""
    records: FileRange | Buffer | Pieces | None = None
    size: int = 0
    place: Place | None = None
    """The place of the batch with the fetch offset, if it is known."""
    diverging: EpochEnd | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions among the records, by first_offset, wherever the records are from."""
    is_remote: bool = False
    """The offset is only in the tier; the records must be read from there."""


@dataclass(slots=True, eq=False)
class Traffic:
    """What clients have produced to and fetched from a partition since the broker started; followers do not count."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, other: Traffic) -> None:
        """Add the counts of `other`."""
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Partition:
    """One partition on this broker.

    Errors  NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE,
            KAFKA_STORAGE_ERROR
    """

    broker_id: int
    topic: str
    topic_id: UUID
    index: int
    log: Log
    checkpointed_high_watermark: InitVar[int] = 0
    brokers: LiveBrokers = field(default_factory=LiveBrokers)
    lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS
    role: Role = field(default=Role.NONE, init=False)
    leader: int = field(default=-1, init=False)
    leader_epoch: int = field(default=NO_EPOCH, init=False)
    partition_epoch: int = field(default=-1, init=False)
    isr: frozenset[int] = field(default=frozenset(), init=False)
    replicas: tuple[int, ...] = field(default=(), init=False)
    progress: LeaderProgress | None = field(default=None, init=False)
    remote: RemotePartition | None = field(default=None, init=False)
    """Set while the topic is tiered here; only the remote log manager sets it."""
    traffic: Traffic = field(default_factory=Traffic, init=False)
    key: TopicPartition = field(init=False)
    name: str = field(init=False)
    _known_high_watermark: int = field(init=False)

    def __post_init__(self, checkpointed_high_watermark: int) -> None:
        self.key = (self.topic, self.index)
        self.name = f"{self.topic}-{self.index}"
        self._known_high_watermark = min(checkpointed_high_watermark, self.log.log_end_offset)

    def __repr__(self) -> str:
        return f"<Partition {self.name} leader_epoch={self.leader_epoch}>"

    # Roles

    def apply(self, image: PartitionImage | None, *, now_ms: int = 0) -> bool:
        """Take the role that changed metadata gives this broker; `image` is None if the partition no longer exists.

        Returns True if the high watermark rose or the broker began or ceased to lead: waiters should check again.
        """
        if image is None or self.broker_id not in image.replicas:
            self.role = Role.NONE
            return self._stop_leading()
        if image.partition_epoch < self.partition_epoch and self.role is not Role.NONE:
            return False
        old_epoch = self.leader_epoch
        self.leader, self.leader_epoch = image.leader, image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.isr, self.replicas = frozenset(image.isr), tuple(image.replicas)
        if image.leader != self.broker_id:
            self.role = Role.FOLLOWER
            return self._stop_leading()
        self.role = Role.LEADER
        if self.progress is not None and old_epoch == image.leader_epoch:
            return self._update_producers(self.progress.on_metadata(self.isr, self.replicas, self.partition_epoch))
        self._lead(image.leader_epoch, now_ms)
        return True

    def _lead(self, leader_epoch: int, now_ms: int) -> None:
        """Begin a leadership: start its epoch before any append, even if the epoch stays empty."""
        self._stop_leading()
        end = self.log.log_end_offset
        self.log.assign_epoch(leader_epoch)
        self.progress = LeaderProgress(
            broker_id=self.broker_id,
            log_end_offset=end,
            high_watermark=min(max(self._known_high_watermark, self.log.log_start_offset), end),
            isr=self.isr,
            replicas=self.replicas,
            min_insync_replicas=self.log.config.min_insync_replicas,
            epoch_start_offset=end,
            leader_epoch=leader_epoch,
            partition_epoch=self.partition_epoch,
            brokers=self.brokers,
            lag_time_max_ms=self.lag_time_max_ms,
            now_ms=now_ms,
        )
        self._update_producers(True)

    def _stop_leading(self) -> bool:
        """Refuse requests for the leader from now on; True if this broker led."""
        progress, self.progress = self.progress, None
        if progress is not None:
            self._known_high_watermark = progress.high_watermark
        return progress is not None

    def reconfigure(self, config: LogConfig) -> bool:
        """Apply changed settings; True if that raised the high watermark."""
        self.log.reconfigure(config)
        progress = self.progress
        if progress is None or progress.min_insync_replicas == config.min_insync_replicas:
            return False
        progress.min_insync_replicas = config.min_insync_replicas
        return self._update_producers(progress.check_again(progress.now_ms))

    @property
    def known_high_watermark(self) -> int:
        """The last known high watermark; a former leader has the value from the end of its leadership."""
        return self._known_high_watermark if self.progress is None else self.progress.high_watermark

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.role is Role.LEADER

    @property
    def is_follower(self) -> bool:
        """Whether this broker follows the partition's leader, or waits for one."""
        return self.role is Role.FOLLOWER

    def leading(self, current_leader_epoch: int = NO_EPOCH) -> LeaderProgress:
        """The leader's progress, or the error for the client of this request.

        Errors  KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER
        """
        self.check_epoch(current_leader_epoch)
        progress = self.progress
        if progress is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is led by {self.leader}")
        return progress

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a request with another leader epoch, or for a log that has failed.

        Errors  KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
        """
        if self.log.state.failure is not None:
            raise self.log.offline_error()
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"{current_leader_epoch=}, ours is {self.leader_epoch}")

    def serves(self, fetcher: Fetcher) -> bool:
        """Whether this replica may answer a Fetch: the leader those of consumers and of its followers, a follower those
        of newer consumers.
        """
        if self.role is Role.LEADER:
            return not fetcher.is_follower or fetcher.replica_id in self.replicas
        return self.role is Role.FOLLOWER and fetcher.may_read_follower

    def _high_watermark_for(self, fetcher: Fetcher, current_leader_epoch: int = NO_EPOCH) -> int:
        """The high watermark of the replica that a fetcher reads. Errors: those of `leading`."""
        if not fetcher.may_read_follower or self.role is not Role.FOLLOWER:
            return self.leading(current_leader_epoch).high_watermark
        self.check_epoch(current_leader_epoch)
        return self._known_high_watermark

    # Progress

    def on_append(self) -> bool:
        """The leader's log has grown: raise the high watermark if possible, and return whether it rose."""
        progress = self.progress
        if progress is None or not progress.on_append(self.log.log_end_offset):
            return False
        self.log.producers.on_high_watermark(progress.high_watermark)
        return True

    def on_follower_fetch(
        self, fetcher: Fetcher, fetch_offset: int, *, log_start_offset: int = UNKNOWN_OFFSET, now_ms: int = 0
    ) -> bool:
        """Record that a follower has all records below its fetch offset. True if those that wait for commits or for
        deleted records should check again: the high watermark rose, or the follower's log starts later.

        May open a proposal to add the follower to the ISR.
        """
        progress = self.leading()
        started = progress.followers[fetcher.replica_id].log_start_offset
        rose = progress.on_follower_fetch(
            fetcher.replica_id,
            fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=fetcher.replica_epoch,
            now_ms=now_ms,
        )
        return self._update_producers(rose) or log_start_offset > started

    def on_leaders_offsets(self, high_watermark: int, log_start_offset: int) -> bool:
        """As a follower, take the leader's offsets after an append; True if the high watermark rose."""
        log = self.log
        reached = min(high_watermark, log.log_end_offset)
        rose = reached > self._known_high_watermark
        if rose:
            self._known_high_watermark = reached
            log.producers.on_high_watermark(reached)
        log.raise_log_start_offset(min(log_start_offset, self._known_high_watermark, log.log_end_offset))
        return rose

    def on_truncated(self) -> None:
        """As a follower, lower the known high watermark to the new end of the log."""
        self._known_high_watermark = min(self._known_high_watermark, self.log.log_end_offset)

    # The ISR

    @property
    def proposal(self) -> IsrProposal | None:
        """The open proposal to change the ISR, which must reach the controller."""
        return None if self.progress is None else self.progress.proposal

    def check_isr(self, now_ms: int) -> tuple[bool, dict[int, FollowerState]]:
        """Time has passed or brokers have changed. Returns whether the high watermark rose, and the lagging members of
        the ISR that a new proposal would remove.
        """
        progress = self.progress
        if progress is None or not progress.followers:
            return False, {}
        rose = self._update_producers(progress.check_again(now_ms))
        lagging = {} if progress.proposal is not None else progress.lagging()
        if lagging:
            progress.propose_without(lagging)
        return rose, lagging

    def on_isr_answer(self, proposal: IsrProposal, answer: AlterPartitionResponsePartition) -> tuple[Verdict, bool]:
        """Take the controller's answer to a proposal. Returns what it means, and whether the high watermark rose.

        UNKNOWN if newer metadata have ended the proposal.
        """
        progress = self.progress
        if progress is None or progress.proposal is not proposal:
            return Verdict.UNKNOWN, False
        found = verdict(answer, leader_epoch=self.leader_epoch, partition_epoch=self.partition_epoch)
        if found is Verdict.REFUSED:
            progress.drop_proposal()
            return found, self._update_producers(progress.check_again(progress.now_ms))
        if found is not Verdict.COMMITTED:
            return found, False
        progress.drop_proposal()
        self.isr, self.partition_epoch = frozenset(answer.isr), answer.partition_epoch
        return found, self._update_producers(progress.on_metadata(self.isr, self.replicas, self.partition_epoch))

    def _update_producers(self, rose: bool) -> bool:
        """Pass a raised high watermark to the producer state, which marks transactions as stable."""
        if rose and self.progress is not None:
            self.log.producers.on_high_watermark(self.progress.high_watermark)
        return rose

    # Offsets

    def readable_end(self, reads_to: ReadsTo = ReadsTo.HIGH_WATERMARK) -> int:
        """The offset up to which a client of the leader may read."""
        return self._end_for(reads_to, self.leading().high_watermark)

    def readable_end_for(self, fetcher: Fetcher) -> int:
        """The offset up to which a fetcher may read from this replica."""
        return self._end_for(fetcher.reads_to, self._high_watermark_for(fetcher))

    def _end_for(self, reads_to: ReadsTo, high_watermark: int) -> int:
        if reads_to is ReadsTo.HIGH_WATERMARK:
            return high_watermark
        if reads_to is ReadsTo.LOG_END_OFFSET:
            return self.log.log_end_offset
        return self._last_stable_offset(high_watermark)

    @property
    def last_stable_offset(self) -> int | None:
        """The offset below which every transaction is completed; None if this broker is not the leader."""
        return None if self.progress is None else self._last_stable_offset(self.progress.high_watermark)

    def _last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is completed."""
        unstable = self.log.producers.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """The end of leader_epoch in this log (KIP-101, KIP-279); None if it is unknown."""
        found_epoch, end_offset = self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)
        return None if found_epoch == NO_EPOCH else EpochEnd(found_epoch, end_offset)

    # Reading

    def read(
        self,
        *,
        fetch_offset: int,
        max_bytes: int,
        fetcher: Fetcher,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        at_least_one_batch: bool = True,
    ) -> PartitionRead:
        """Read whole batches from the one that holds fetch_offset: at most max_bytes, or one with at_least_one_batch.

        For an offset that is only in the tier nothing is read; the result says so.
        Errors  those of `leading`, OFFSET_OUT_OF_RANGE
        Source  KIP-227, KIP-320, KIP-595 (diverging epochs)
        """
        found = self.look_up(
            fetch_offset,
            fetcher=fetcher,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        if found.diverging is not None:
            return found
        end = found.readable_end
        if fetch_offset < end:
            try:
                piece = self.log.read(
                    fetch_offset, max_bytes=max_bytes, end_offset=end, at_least_one_batch=at_least_one_batch
                )
            except KafkaError:
                # Retention may have just removed the segment. Successful reads need no such check.
                if not self.is_remote(fetch_offset):
                    raise
                found.is_remote = True
                return found
            found.records, found.size, found.place = piece.records, piece.size, piece.place
        else:
            found.place = self.log.place_of(fetch_offset)
        return found

    def is_unchanged_since(self, read: PartitionRead, fetcher: Fetcher) -> bool:
        """Whether `look_up` would return the offsets of an earlier read again."""
        log, high_watermark = self.log, self.known_high_watermark
        return (
            high_watermark == read.high_watermark
            and self.leader_epoch == read.leader_epoch
            and log.log_start_offset == read.log_start_offset
            and log.state.failure is None
            and self.serves(fetcher)
            and self._end_for(fetcher.reads_to, high_watermark) == read.readable_end
        )

    def look_up(
        self, fetch_offset: int, *, fetcher: Fetcher, current_leader_epoch: int, last_fetched_epoch: int
    ) -> PartitionRead:
        """What a Fetch of this offset finds, without its records. Pure.

        Errors  those of `leading`, OFFSET_OUT_OF_RANGE
        """
        high_watermark = self._high_watermark_for(fetcher, current_leader_epoch)
        if fetcher.is_follower:
            self._check_follower(fetcher.replica_id, current_leader_epoch)
        log = self.log
        last_stable_offset = self._last_stable_offset(high_watermark)
        end = self._end_for(fetcher.reads_to, high_watermark)
        found = PartitionRead(high_watermark, last_stable_offset, log.log_start_offset, self.leader_epoch, end)
        if last_fetched_epoch != NO_EPOCH:
            found.diverging = self._divergence(last_fetched_epoch, fetch_offset)
            if found.diverging is not None:
                return found
        if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
            raise self._out_of_range(fetch_offset)
        return found

    def is_remote(self, offset: int) -> bool:
        """Whether an offset must be read from the tier, because the local log starts after it.

        Also true while a tiered topic has no tier: OFFSET_OUT_OF_RANGE would make consumers skip the records.
        """
        log = self.log
        return log.log_start_offset <= offset < log.local_log_start_offset and (
            self.remote is not None or log.config.remote_storage_enable
        )

    def _check_follower(self, replica_id: int, current_leader_epoch: int) -> None:
        if replica_id not in self.replicas or replica_id == self.broker_id:
            without_epoch = current_leader_epoch == NO_EPOCH
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if without_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"{replica_id=} is not a follower of {self.name}")

    def _divergence(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the fetcher's history diverges from this log, if it does so before fetch_offset."""
        epoch_end = self.end_of_epoch(last_fetched_epoch)
        if epoch_end is None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"unknown {last_fetched_epoch=}")
        if fetch_offset < self.log.log_start_offset:
            raise self._out_of_range(fetch_offset)
        diverges = epoch_end.leader_epoch < last_fetched_epoch or epoch_end.end_offset < fetch_offset
        return epoch_end if diverges else None

    def _out_of_range(self, fetch_offset: int) -> KafkaError:
        bounds = f"{self.log.log_start_offset}..{self.log.log_end_offset}"
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch_offset=} is outside {bounds} of {self.name}")

    def bytes_between(self, fetch_offset: int, end: int, place: Place | None) -> int | None:
        """Bytes from a fetch offset, which was at `place` when it was read, up to `end`. Pure.

        None if a segment ends between them: an answer ends with its segment, so waiting cannot add records. Also None
        if a position is not known in memory.
        """
        if fetch_offset >= end:
            return 0
        first, last = self.log.place_of(fetch_offset) or place, self.log.place_of(end)
        return last[1] - first[1] if first is not None and last is not None and first[0] == last[0] else None
