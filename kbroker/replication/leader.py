"""The leader's view of the replicas' progress.

Theory of operation: the high watermark is the offset below which every in-sync replica has all records, so it is the
smallest log end offset in the ISR. A follower's log end offset is the offset that it fetches next, because a fetch
acknowledges all earlier records. The maximal ISR counts: the committed one plus members that are being added. So a
record never counts as committed while a new member lacks it.

Source: KIP-101, KIP-320, KIP-966 (no advance below min.insync.replicas), Apache Kafka's partition leader.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LeaderProgress:
    """The leader's view of the replicas of one partition.

    Shape      fetched maps replica_id to the offset below which that replica has all records
    Units      offsets count records (int64)
    Invariant  high_watermark <= log_end_offset, and high_watermark never falls
    Note       the caller has refused requests with another leader epoch and offsets out of range
    Source     KIP-101, KIP-320
    """

    broker_id: int
    log_end_offset: int
    high_watermark: int
    isr: frozenset[int]
    min_insync_replicas: int = 1
    replica_count: int = 1
    epoch_start_offset: int = 0
    """log_end_offset when this leadership began: the first offset of its epoch."""
    fetched: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.broker_id in self.isr, "a leader is in its own ISR"
        self._advance()

    def on_append(self, log_end_offset: int) -> bool:
        """Record the leader's own log end offset; True if high_watermark rose and waiters should check again."""
        assert log_end_offset >= self.log_end_offset, "a leader's log never shrinks"
        self.log_end_offset = log_end_offset
        return self._advance()

    def on_follower_fetch(self, replica_id: int, fetch_offset: int) -> bool:
        """Record a follower's progress; True if high_watermark rose and waiters should check again."""
        self.fetched[replica_id] = fetch_offset
        return self._advance()

    def on_isr_change(self, isr: frozenset[int]) -> bool:
        """Apply a new (maximal) ISR; True if high_watermark rose."""
        assert self.broker_id in isr, "a leader is in its own ISR"
        self.isr = isr
        return self._advance()

    @property
    def has_enough_replicas(self) -> bool:
        """Whether acks=all may be answered: the ISR has at least min.insync.replicas members or all replicas."""
        return len(self.isr) >= min(self.min_insync_replicas, self.replica_count)

    def _advance(self) -> bool:
        if not self.has_enough_replicas:
            return False
        reached = self.log_end_offset
        if len(self.isr) > 1:
            reached = min(
                reached, *(self.fetched.get(replica, -1) for replica in self.isr if replica != self.broker_id)
            )
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
