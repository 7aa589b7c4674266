"""One partition of an internal topic that this broker leads: its log and its shard.

The records of a decision are appended as one batch, in the three steps of every append (see kbroker.storage.log), and
then replayed into the shard. The caller (runtime.py) makes these steps atomic.
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

NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, -1)


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
    Note   unreadable_records were skipped when the log was loaded; first_unreadable says where the first one is, and
           why
    """

    partition: Partition
    shard: S
    state: State = State.LOADING
    unreadable_records: int = 0
    first_unreadable: str = ""
    leader_epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.leader_epoch = self.partition.leader_epoch

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
        return log.plan_append(
            batch, leader_epoch=self.leader_epoch, timestamp_ms=timestamp_ms, verification=verification
        )

    def commit(self, plan: AppendPlan) -> None:
        """Finish an append after its batch is written."""
        self.partition.log.commit(plan)
        self.partition.on_append()

    def outcome(self, next_offset: int) -> ErrorCode | None:
        """The result of an append that ends at next_offset; None while the in-sync replicas lack it."""
        partition = self.partition
        if partition.log.state.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        progress = partition.progress
        if progress is None or partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if progress.high_watermark >= next_offset else None
