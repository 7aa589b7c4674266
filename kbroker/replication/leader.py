"""The leader's view of the replicas' progress.

Theory of operation: the high watermark is the offset below which every in-sync replica has all records, so it is the
smallest log end offset in the ISR. A follower's log end offset is the offset that it fetches next, because a fetch
acknowledges all earlier records. The maximal ISR counts (see isr.py). A follower that is not in the ISR but has caught
up, and may join, counts too: otherwise the high watermark could stay ahead of it for ever, and it could never join.

The high watermark does not advance while the ISR is smaller than min.insync.replicas (KIP-966).

A follower has caught up at the time of a fetch that reaches the leader's log end offset, or at the time of its previous
fetch if this one reaches the log end offset of that time. It joins the ISR when it reaches the high watermark and the
start of the leader's epoch. It leaves when it has not caught up for `replica.lag.time.max.ms`, unless it is at the log
end.

Time is that of the last event (`now_ms` of a fetch, a check or an election), so an append needs no clock.

Source: KIP-101, KIP-320, KIP-497, KIP-903, KIP-966; `Partition` and `Replica` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kbroker.replication.isr import NO_BROKER_EPOCH, NOT_FETCHED, IsrProposal, LiveBrokers

NEVER: Final = -(1 << 62)
UNKNOWN_OFFSET: Final = -1
DEFAULT_LAG_TIME_MAX_MS: Final = 30_000


@dataclass(slots=True)
class FollowerState:
    """What the leader knows of one follower since its election.

    Shape  fetch_offset is the follower's log end offset, and log_start_offset its own; both -1 before its first fetch
    Shape  broker_epoch is that of its last fetch: -1 if the fetch had none, NOT_FETCHED before the first one
    Units  *_ms is monotonic time
    """

    fetch_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = NOT_FETCHED
    caught_up_ms: int = NEVER
    fetched_ms: int = NEVER
    end_at_fetch: int = UNKNOWN_OFFSET
    """The leader's log end offset at the last fetch."""

    def on_fetch(
        self, fetch_offset: int, *, log_start_offset: int, broker_epoch: int, end_offset: int, now_ms: int
    ) -> None:
        """Record a fetch; `end_offset` is the leader's log end offset."""
        if fetch_offset >= end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.fetch_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.end_at_fetch = max(self.end_at_fetch, end_offset)
        self.fetched_ms = now_ms

    def is_caught_up(self, end_offset: int, *, now_ms: int, lag_ms: int) -> bool:
        """Whether the follower is at the leader's log end, or was there within the last `lag_ms`."""
        return self.fetch_offset == end_offset or now_ms - self.caught_up_ms <= lag_ms


@dataclass(slots=True, eq=False)
class LeaderProgress:
    """The leader's view of the replicas of one partition.

    Shape      followers has all replicas except the leader
    Units      offsets count records (int64); *_ms is monotonic time
    Invariant  high_watermark <= log_end_offset, and high_watermark never falls
    Note       the caller has refused requests with another leader epoch and offsets out of range
    Source     KIP-101, KIP-320
    """

    broker_id: int
    log_end_offset: int
    high_watermark: int
    isr: frozenset[int]
    """The committed ISR."""
    replicas: tuple[int, ...]
    min_insync_replicas: int = 1
    epoch_start_offset: int = 0
    """log_end_offset when this leadership began: the first offset of its epoch."""
    leader_epoch: int = 0
    partition_epoch: int = 0
    brokers: LiveBrokers = field(default_factory=LiveBrokers)
    lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS
    now_ms: int = 0
    proposal: IsrProposal | None = field(default=None, init=False)
    maximal_isr: frozenset[int] = field(init=False)
    followers: dict[int, FollowerState] = field(init=False)

    def __post_init__(self) -> None:
        self.followers = {}
        self.maximal_isr = self.isr
        self._assign(self.replicas)
        for follower_id in self.isr:
            if follower_id != self.broker_id:
                self.followers[follower_id].caught_up_ms = self.now_ms
        self._advance()

    # The high watermark

    def on_append(self, log_end_offset: int) -> bool:
        """Record the leader's own log end offset; True if high_watermark rose and waiters should check again."""
        assert log_end_offset >= self.log_end_offset, "a leader's log never shrinks"
        self.log_end_offset = log_end_offset
        return self._advance()

    def on_follower_fetch(
        self,
        replica_id: int,
        fetch_offset: int,
        *,
        log_start_offset: int = UNKNOWN_OFFSET,
        broker_epoch: int = NO_BROKER_EPOCH,
        now_ms: int = 0,
    ) -> bool:
        """Record a follower's progress; True if high_watermark rose and waiters should check again.

        Proposes to add the follower to the ISR if it is in sync.
        """
        self.now_ms = max(self.now_ms, now_ms)
        follower = self.followers[replica_id]
        known_epoch = follower.broker_epoch
        if broker_epoch != known_epoch and (replica_id not in self.isr or known_epoch != NOT_FETCHED):
            # A new process. That the earlier one had caught up must not make acks=all wait for it, also if it fetches
            # before this leader learns that it has left the ISR.
            follower = self.followers[replica_id] = FollowerState()
        follower.on_fetch(
            fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            end_offset=self.log_end_offset,
            now_ms=now_ms,
        )
        # Before the high watermark rises, because it must not pass a follower that can join now.
        self._propose_member(replica_id, follower)
        return self._advance()

    def on_metadata(self, isr: frozenset[int], replicas: tuple[int, ...], partition_epoch: int) -> bool:
        """Apply a committed ISR and assignment; True if high_watermark rose.

        They end an open proposal, unless it is based on them: the answer to the proposal before may have brought the
        same ISR earlier.
        """
        assert self.broker_id in isr, "a leader is in its own ISR"
        self.isr = isr
        self.partition_epoch = partition_epoch
        if self.proposal is None or self.proposal.partition_epoch != partition_epoch:
            self.drop_proposal()
        if replicas != self.replicas:
            self._assign(replicas)
        return self._advance()

    def check_again(self, now_ms: int) -> bool:
        """Time has passed, or brokers or settings have changed; True if high_watermark rose."""
        self.now_ms = max(self.now_ms, now_ms)
        return self._advance()

    @property
    def replica_count(self) -> int:
        """The number of replicas, the leader included."""
        return len(self.followers) + 1

    @property
    def has_enough_replicas(self) -> bool:
        """Whether acks=all may be appended: the ISR has at least min.insync.replicas members or all replicas."""
        return len(self.isr) >= min(self.min_insync_replicas, self.replica_count)

    @property
    def had_enough_replicas(self) -> bool:
        """Whether a committed append may be acknowledged to acks=all: as has_enough_replicas, but the maximal ISR
        counts.
        """
        return len(self.maximal_isr) >= min(self.min_insync_replicas, self.replica_count)

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of the followers that are alive; log_end_offset if there are none."""
        found = self.log_end_offset
        for follower_id, follower in self.followers.items():
            if follower_id in self.brokers.epochs:
                found = min(found, follower.log_start_offset)
        return found

    @property
    def isr_log_start_offset(self) -> int:
        """The smallest log start offset of the other in-sync replicas; log_end_offset if there are none."""
        starts = [state.log_start_offset for follower_id, state in self.followers.items() if follower_id in self.isr]
        return min(starts, default=self.log_end_offset)

    def _assign(self, replicas: Iterable[int]) -> None:
        self.replicas = tuple(replicas)
        known = self.followers
        self.followers = {
            replica: known.get(replica) or FollowerState() for replica in self.replicas if replica != self.broker_id
        }

    def _advance(self) -> bool:
        reached = self.log_end_offset
        followers = self.followers
        if followers:
            if len(self.isr) < min(self.min_insync_replicas, len(followers) + 1):
                return False
            maximal_isr = self.maximal_isr
            for follower_id, follower in followers.items():
                if follower.fetch_offset < reached and (
                    follower_id in maximal_isr or self._is_about_to_join(follower_id, follower)
                ):
                    reached = follower.fetch_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def _is_about_to_join(self, follower_id: int, follower: FollowerState) -> bool:
        caught_up = follower.is_caught_up(self.log_end_offset, now_ms=self.now_ms, lag_ms=self.lag_time_max_ms)
        return caught_up and self.brokers.may_join(follower_id, follower.broker_epoch)

    # The ISR

    def _propose_member(self, replica_id: int, follower: FollowerState) -> None:
        """Propose to add a follower that has just fetched, if it is in sync and no proposal is open."""
        if replica_id in self.isr or self.proposal is not None:
            return
        if follower.fetch_offset < self.high_watermark or follower.fetch_offset < self.epoch_start_offset:
            return
        if not self.brokers.may_join(replica_id, follower.broker_epoch):
            return
        # It may be a member before the answer arrives.
        self.maximal_isr = self.isr | {replica_id}
        self._propose(self.maximal_isr, replica_id)

    def lagging(self) -> dict[int, FollowerState]:
        """The members of the ISR that have not caught up for lag_time_max_ms."""
        return {
            member: follower
            for member, follower in self.followers.items()
            if member in self.isr
            and not follower.is_caught_up(self.log_end_offset, now_ms=self.now_ms, lag_ms=self.lag_time_max_ms)
        }

    def propose_without(self, lagging: Iterable[int]) -> None:
        """Propose to remove members. They count for the high watermark until the controller has decided."""
        assert self.proposal is None, "one proposal is open at a time"
        self._propose(self.isr.difference(lagging), None)

    def _propose(self, members: frozenset[int], added: int | None) -> None:
        epochs = {member: self._broker_epoch(member) for member in members}
        self.proposal = IsrProposal(self.leader_epoch, self.partition_epoch, epochs, added)

    def _broker_epoch(self, member: int) -> int:
        if member == self.broker_id:
            return self.brokers.epochs.get(member, NO_BROKER_EPOCH)
        # -1 before the member's first fetch: if it has crashed since, the controller has changed the partition epoch.
        return max(NO_BROKER_EPOCH, self.followers[member].broker_epoch)

    def drop_proposal(self) -> None:
        """End the proposal: only the committed ISR is in effect."""
        self.proposal = None
        self.maximal_isr = self.isr
