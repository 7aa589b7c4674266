"""One partition of `__consumer_offsets` that this broker leads: its log, its shard, and how much of the log is history.

Records of a decision are appended as one batch, in three steps as every append (see kbroker.storage.log), and replayed
into the shard when they are in the log. Who takes the steps (tasks.py) lets nothing come between.

The log is a history of which a restart needs the outcome alone. `bytes_behind` counts what a restart has to read;
`LedPartition.is_worth_rewriting` says when that is so much more than the state itself that writing the state anew at
the end, and forgetting everything before, costs less than it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from kbroker.coordinator.records import GroupRecord, StoredRecord
from kbroker.coordinator.shard import GroupShard
from kbroker.replication.partition import Partition
from kbroker.storage.plans import AppendPlan
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

REWRITE_FACTOR: Final = 4
"""A log of so many times the live state is rewritten, so that at most a quarter of what is written is rewriting."""

HISTORY_BYTES: Final = 8 << 20
"""What all partitions together may hold before any of them is rewritten: a restart reads it in less than a second."""


class Stored(Protocol):
    """What can be appended."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


class State(Enum):
    """Whether the shard can be asked."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


class LedPartition:
    """See the module's text.

    Shape  leader_epoch is that of the leadership for which the shard was loaded
    Shape  group_records holds the stored record of each group, key to value: while a group rebalances, what is stored
           of it is not what the shard knows
    Units  bytes_behind are bytes of batches in the log; rewrite_at_bytes is where it is looked at next, and not before
           history_bytes
    Note   must_keep_history: something in the log is not in the shard's state, so that it is never rewritten
    Note   unreadable_records were skipped when the log was loaded; first_unreadable says where the first is, and why
    """

    __slots__ = (
        "_history_bytes",
        "bytes_behind",
        "first_unreadable",
        "group_records",
        "leader_epoch",
        "must_keep_history",
        "partition",
        "rewrite_at_bytes",
        "shard",
        "state",
        "unreadable_records",
    )

    def __init__(self, partition: Partition, shard: GroupShard, *, history_bytes: int = HISTORY_BYTES) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.state = State.LOADING
        self.group_records: dict[bytes, bytes] = {}
        self.bytes_behind = 0
        self._history_bytes = history_bytes
        self.rewrite_at_bytes = self._floor_bytes
        self.must_keep_history = False
        self.unreadable_records = 0
        self.first_unreadable = ""

    def __repr__(self) -> str:
        return f"<LedPartition {self.partition.name} leader_epoch={self.leader_epoch} {self.state.value}>"

    @property
    def is_led(self) -> bool:
        """Whether this broker still leads the partition, and in the same epoch."""
        partition = self.partition
        return partition.progress is not None and partition.leader_epoch == self.leader_epoch

    def require_active(self) -> None:
        """Go on only if the shard can be asked. Errors: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""
        if self.state is State.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition.name} is being loaded")
        if self.state is not State.ACTIVE or not self.is_led:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.name} is {self.state.value} here")

    def plan(self, records: Sequence[Stored], *, codec: Codec, timestamp_ms: int) -> AppendPlan:
        """Plan the append of records as one batch.

        Errors  those of Partition.leading and Log.plan_append, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE
        """
        partition = self.partition
        progress = partition.leading()
        if not self.is_led:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name} is led in another epoch")
        if not progress.has_enough_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{partition.name} has too few in-sync replicas")
        batch = build_batch(
            [Record(timestamp=timestamp_ms, key=record.key, value=record.value) for record in records], codec=codec
        )
        log = partition.log
        if len(batch) > log.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{partition.name}: a batch of {len(records)} records has {len(batch)} bytes",
            )
        return log.plan_append(batch, leader_epoch=self.leader_epoch, timestamp_ms=timestamp_ms)

    def commit(self, plan: AppendPlan, records: Sequence[StoredRecord]) -> None:
        """Note that what was planned is written; `records` are those of them that change what is stored."""
        partition = self.partition
        partition.log.commit(plan)
        partition.on_append()
        self.bytes_behind += plan.size
        for record in records:
            if type(record) is GroupRecord:
                value = record.value
                if value is None:
                    self.group_records.pop(record.key, None)
                else:
                    self.group_records[record.key] = value

    def outcome(self, next_offset: int) -> ErrorCode | None:
        """What is to be said of an append that ends at next_offset; None while the in-sync replicas lack it."""
        partition = self.partition
        if partition.log.state.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        progress = partition.progress
        if progress is None or partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if progress.high_watermark >= next_offset else None

    @property
    def wants_rewriting(self) -> bool:
        """Whether the log is long enough to ask what of it is live."""
        return self.bytes_behind >= self.rewrite_at_bytes and not self.must_keep_history

    def postpone_rewriting(self) -> None:
        """It failed: try again when the log has grown."""
        self.rewrite_at_bytes = self.bytes_behind + self._floor_bytes

    def is_worth_rewriting(self, live_bytes: int) -> bool:
        """Whether the log is far longer than a live state of so many bytes; if not, when to look again is noted."""
        self.rewrite_at_bytes = max(self._floor_bytes, REWRITE_FACTOR * live_bytes)
        return self.bytes_behind >= self.rewrite_at_bytes

    @property
    def _floor_bytes(self) -> int:
        return min(self._history_bytes, self.partition.log.config.segment_bytes)
