"""One partition of an internal topic that this broker leads: its log, its shard, and when to rewrite its log.

The records of a decision are appended as one batch, in the three steps of every append (see kbroker.storage.log), and
then replayed into the shard. The caller (runtime.py) makes these steps atomic.

A restart needs only the state that the log produces, not its history. `bytes_behind` counts the bytes that a restart
has to read. `LedPartition.is_worth_rewriting` says when these are so many more than the state needs that the broker
should rewrite the state at the end of the log and drop everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic

from kbroker.coordinator.common.ports import Producer, S, Stored
from kbroker.replication.partition import Partition
from kbroker.storage.plans import AppendPlan
from wire.batch_header import NO_PRODUCER_ID
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

REWRITE_FACTOR: Final = 4
"""Rewrite a log that is this many times larger than the live state. At most a quarter of all writes are then rewrites.
"""

NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, -1)

HISTORY_BYTES: Final = 8 << 20
"""Divided among the partitions: a log shorter than its share, or than a segment, is not rewritten. A restart reads this
many bytes in less than a second.
"""


class State(Enum):
    """The state of a shard; only an active one answers requests."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


@dataclass(eq=False, slots=True)
class LedPartition(Generic[S]):
    """A led partition; see the module docstring.

    Shape  leader_epoch is the epoch for which the shard was loaded
    Units  bytes_behind counts bytes of batches in the log; rewrite_at_bytes is the size at which rewriting is
           considered next, at least the smaller of history_bytes and the segment size
    Note   must_keep_history: the log holds something that the shard does not, so it is never rewritten
    Note   unreadable_records were skipped when the log was loaded; first_unreadable says where the first one is, and
           why
    """

    partition: Partition
    shard: S
    history_bytes: int = HISTORY_BYTES
    state: State = State.LOADING
    bytes_behind: int = 0
    must_keep_history: bool = False
    unreadable_records: int = 0
    first_unreadable: str = ""
    leader_epoch: int = field(init=False)
    rewrite_at_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.leader_epoch = self.partition.leader_epoch
        self.rewrite_at_bytes = self._floor_bytes

    def __repr__(self) -> str:
        return f"<LedPartition {self.partition.name} leader_epoch={self.leader_epoch} {self.state.value}>"

    @property
    def is_led(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        partition = self.partition
        return partition.progress is not None and partition.leader_epoch == self.leader_epoch

    def require_active(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless the shard can answer requests."""
        if self.state is State.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition.name} is being loaded")
        if self.state is not State.ACTIVE or not self.is_led:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.name} is not active on this broker")

    def plan(
        self, records: Sequence[Stored], *, codec: Codec, timestamp_ms: int, producer: Producer | None = None
    ) -> AppendPlan:
        """Plan the append of records as one batch, which is transactional if there is a producer.

        Errors  those of Partition.leading and Log.plan_append, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE
        """
        partition = self.partition
        progress = partition.leading()
        if not self.is_led:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader epoch of {partition.name} has changed")
        if not progress.has_enough_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{partition.name} has too few in-sync replicas")
        producer_id, producer_epoch, verification = producer or NO_PRODUCER
        batch = build_batch(
            [Record(timestamp=timestamp_ms, key=record.key, value=record.value) for record in records],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=producer is not None,
        )
        log = partition.log
        if len(batch) > log.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{partition.name}: a batch of {len(records)} records has {len(batch)} bytes",
            )
        if producer is not None:
            self.must_keep_history = True  # rewriting does not copy offsets of open transactions
        return log.plan_append(
            batch, leader_epoch=self.leader_epoch, timestamp_ms=timestamp_ms, verification=verification
        )

    def commit(self, plan: AppendPlan) -> None:
        """Finish an append after its batch is written."""
        self.partition.log.commit(plan)
        self.partition.on_append()
        self.bytes_behind += plan.size

    def outcome(self, next_offset: int) -> ErrorCode | None:
        """The result of an append that ends at next_offset; None while the in-sync replicas lack it."""
        partition = self.partition
        if partition.log.state.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        progress = partition.progress
        if progress is None or partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if progress.high_watermark >= next_offset else None

    @property
    def wants_rewriting(self) -> bool:
        """Whether the log is long enough to compare it with its live state."""
        return self.bytes_behind >= self.rewrite_at_bytes and not self.must_keep_history

    def postpone_rewriting(self) -> None:
        """After a failed rewrite: try again when the log has grown."""
        self.rewrite_at_bytes = self.bytes_behind + self._floor_bytes

    def is_worth_rewriting(self, live_bytes: int) -> bool:
        """Whether the log is much larger than a live state of live_bytes. If not, sets the size for the next check."""
        self.rewrite_at_bytes = max(self._floor_bytes, REWRITE_FACTOR * live_bytes)
        return self.bytes_behind >= self.rewrite_at_bytes

    @property
    def _floor_bytes(self) -> int:
        return min(self.history_bytes, self.partition.log.config.segment_bytes)
