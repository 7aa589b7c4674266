"""The state of one partition on this broker: its role, its log, and its part in the ISR.

Theory of operation: the metadata gives each partition's leader and leader epoch. `Partition.apply` takes each change
and makes this broker the partition's leader, a follower, or neither; nothing else changes the role. On the leader only
its progress (see leader.py) moves the high watermark; a follower takes it from the leader's answers (see follower.py).
A partition with one replica uses the same code with isr = {self}.

Metadata with an older partition epoch change nothing: the answer to a proposed ISR may arrive before the metadata.

Source: KIP-101, KIP-320, KIP-497, KIP-966.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker.metadata.image import PartitionImage
from kbroker.replication.isr import IsrProposal, LiveBrokers, Verdict, verdict
from kbroker.replication.leader import DEFAULT_LAG_TIME_MAX_MS, UNKNOWN_OFFSET, FollowerState, LeaderProgress
from kbroker.replication.partition_reads import NO_EPOCH, Fetcher
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition import AlterPartitionResponsePartition

if TYPE_CHECKING:
    from kbroker.tiered.partition import RemotePartition


class Role(Enum):
    """The role of this broker for a partition, as the metadata assigns it."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


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
class PartitionState:
    """The base class of `Partition`, which adds the reads."""

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
        self.log.producers.on_high_watermark(self._known_high_watermark)

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
    def common_log_start_offset(self) -> int:
        """The log start offset that all in-sync replicas have reached, so that no next leader reads from before it.
        On a follower its own.
        """
        own = self.log.log_start_offset
        return own if self.progress is None else min(own, self.progress.isr_log_start_offset)

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
        self,
        fetcher: Fetcher,
        fetch_offset: int,
        *,
        current_leader_epoch: int = NO_EPOCH,
        log_start_offset: int = UNKNOWN_OFFSET,
        now_ms: int = 0,
    ) -> bool:
        """Record that a follower has all records below its fetch offset. True if those that wait for commits or for
        deleted records should check again: the high watermark rose, or the follower's log starts later.

        May open a proposal to add the follower to the ISR.

        Errors  those of `leading`
        """
        progress = self.leading(current_leader_epoch)
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
        self.log.producers.on_high_watermark(self._known_high_watermark)

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
