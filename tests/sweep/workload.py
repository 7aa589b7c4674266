"""Generated workloads for one partition's log, with a minimal broker around it.

A workload is a list of steps drawn from a seed. Each step draws its details from its own stream, so a workload without
one step is otherwise unchanged. `LogDirectory` is the part of a broker that matters for recovery: the checkpoint files
and the clean-shutdown marker of a log directory. `LogWorkload` runs the steps on a real `Log` and updates a `ModelLog`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from kbroker.runtime.ports import Disk
from kbroker.storage.control_records import marker_batch
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from kbroker.storage.plans import AppendPlan
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from tests.sweep.log_model import ModelLog, window_of
from wire.batch_header import MAX_SEQUENCE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, batches, build_batch

DATA = "/data"
TOPIC = "sweep"
TOPIC_ID = uuid.UUID(int=0xC0FFEE)
START_MS = 1_700_000_000_000
PRODUCERS = (1000, 1001, 1002)
TRANSACTIONAL = (2000, 2001)

Report = Callable[[str], None]


class StartBroker(Protocol):
    """How a broker starts; canary tests pass a faulty start."""

    def __call__(
        self, disk: Disk, config: LogConfig, *, timestamp_ms: int, report: Report
    ) -> tuple[LogDirectory, Log]: ...


def drawn_config(seed: int) -> LogConfig:
    """Settings so small that a few dozen batches roll, index, flush and expire."""
    draws = Draws("config", seed)
    return replace(
        LogConfig(),
        segment_bytes=draws.choice([600, 1500, 5000]),
        index_interval_bytes=draws.choice([0, 150, 400, 4096]),
        segment_index_bytes=draws.choice([48, 10 << 20]),
        flush_messages=draws.weighted([((1 << 63) - 1, 5), (1, 2), (7, 2)]),
        retention_bytes=draws.choice([-1, 2500]),
        file_delete_delay_ms=draws.choice([0, 60_000]),
    )


def start_broker(disk: Disk, config: LogConfig, *, timestamp_ms: int, report: Report) -> tuple[LogDirectory, Log]:
    """Start a broker's only partition; formats a new disk.

    Errors: whatever recovery raises.
    """
    numbers = iter(range(1, 10))
    directory = LogDirectory(
        DATA, disk=disk, node_id=1, cluster_id="sweep", new_uuid=lambda: uuid.UUID(int=next(numbers)), report=report
    )
    log = directory.open_log(TOPIC, 0, topic_id=TOPIC_ID, config=config, timestamp_ms=timestamp_ms)
    return directory, log


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    name: str


_STEPS = [
    ("append", 8), ("produce", 12), ("transact", 6), ("end_transaction", 5), ("follow_transaction", 2),
    ("produce_again", 3), ("append_several", 2), ("append_as_follower", 3), ("lead", 3), ("roll", 2), ("flush", 3),
    ("flush_closed", 2), ("checkpoint", 4), ("truncate", 3), ("restart_at", 1), ("delete_records", 2), ("retain", 3),
    ("unlink_doomed", 2), ("restart", 1), ("die", 1),
]  # fmt: skip


def drawn_steps(seed: int, count: int) -> list[Step]:
    draws = Draws("steps", seed)
    return [Step(number, draws.weighted(_STEPS)) for number in range(count)]


class LogWorkload:
    """Runs steps on a log and on its model.

    Note    `disk` changes when a step kills the process; `on_new_disk` is called. is_stopped between a stop and a start
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        config: LogConfig,
        seed: int,
        *,
        start: StartBroker = start_broker,
        on_new_disk: Callable[[SimulatedDisk], None] = lambda _: None,
    ) -> None:
        self.disk = disk
        self.config = config
        self.model = ModelLog()
        self.is_stopped = False
        self._seed = seed
        self._start = start
        self._on_new_disk = on_new_disk
        self._epoch = 0
        self._timestamp_ms = START_MS
        self._producer_epochs = dict.fromkeys(PRODUCERS, 0)
        self._reports: list[str] = []
        on_new_disk(disk)
        self._directory, self.log = self._started()
        self._settle()

    def run(self, step: Step) -> None:
        """Run one step. Errors: AssertionError if the log misbehaves while it runs."""
        draws = Draws("step", self._seed, step.number)
        self._timestamp_ms += draws.below(50)
        getattr(self, f"_{step.name}")(draws)
        self._settle()
        assert self.log.log_end_offset == self.model.log_end_offset, (
            f"{step}: the log and its model differ in their end"
        )
        if self.config.flush_messages == 1:
            assert self.model.synced_end == self.log.log_end_offset, f"{step}: flush.messages=1, but not all is flushed"

    def _started(self) -> tuple[LogDirectory, Log]:
        self._reports.clear()
        return self._start(self.disk, self.config, timestamp_ms=self._timestamp_ms, report=self._reports.append)

    def _settle(self) -> None:
        log = self.log
        self.model.note_state(log_start_offset=log.log_start_offset, recovery_point=log.recovery_point)

    def _records(self, draws: Draws) -> list[Record]:
        return [
            Record(
                timestamp=self._timestamp_ms + draws.between(-40, 40),
                key=draws.bytes(4) if draws.chance(0.5) else None,
                value=draws.bytes(draws.below(120)),
            )
            for _ in range(draws.between(1, 4))
        ]

    def _codec(self, draws: Draws) -> Codec:
        return draws.weighted([(Codec.NONE, 6), (Codec.LZ4, 1), (Codec.ZSTD, 1)])

    # Appends.

    def _append_data(self, data: bytes) -> None:
        plan = self.log.plan_append(bytearray(data), leader_epoch=self._epoch, timestamp_ms=self._timestamp_ms)
        assert not plan.is_duplicate, "a new batch is taken for a duplicate"
        self._finish(plan)

    def _finish(self, plan: AppendPlan) -> None:
        plan.stamp()
        self.model.begin_append(list(batches(bytes(plan.data))))
        try:
            self.log.write(plan)
        except KafkaError:
            # A refused batch is truncated. In a failed directory the log changes nothing more, so the batch may be
            # found after a restart, like any request without an answer.
            if self.log.state.failure is None:
                self.model.refuse_append()
            raise
        self.log.commit(plan)
        self.model.finish_append()

    def _append(self, draws: Draws) -> None:
        self._append_data(build_batch(self._records(draws), codec=self._codec(draws)))

    def _append_several(self, draws: Draws) -> None:
        self._append_data(b"".join(build_batch(self._records(draws)) for _ in range(draws.between(2, 3))))

    def _next_of(self, producer_id: int, draws: Draws) -> tuple[int, int]:
        """The (epoch, sequence) with which a producer continues."""
        window = window_of(self.model.batches, producer_id)
        if not window:
            # The log does not know the producer, so it may begin anywhere; here shortly before the sequence wraps.
            return self._producer_epochs[producer_id], draws.choice([0, MAX_SEQUENCE - 2])
        last = window[-1]
        if draws.chance(0.1):
            self._producer_epochs[producer_id] = last.producer_epoch + 1
            return last.producer_epoch + 1, 0
        self._producer_epochs[producer_id] = last.producer_epoch
        return last.producer_epoch, (last.last_sequence + 1) & MAX_SEQUENCE

    def _produce(self, draws: Draws) -> None:
        producer_id = draws.choice(PRODUCERS)
        epoch, sequence = self._next_of(producer_id, draws)
        self._append_data(
            build_batch(
                self._records(draws),
                codec=self._codec(draws),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )

    def _produce_again(self, draws: Draws) -> None:
        """Retries of the last five batches of a producer are answered from memory, and a gap is refused."""
        first = self.log.segments.first.base_offset
        sent = window_of(self.model.batches, draws.choice(PRODUCERS))
        window = [batch for batch in sent if batch.base_offset >= first]
        if not window:
            return
        operations = self.disk.operations
        for batch in window:
            again = self.log.append(bytearray(batch.data), leader_epoch=self._epoch, timestamp_ms=self._timestamp_ms)
            assert again.is_duplicate, f"{batch} is appended again"
            assert again.first_offset == batch.base_offset, f"{batch} sent again gets the offset {again.first_offset}"
        last = window[-1]
        gap = build_batch(
            self._records(draws),
            producer_id=last.producer_id,
            producer_epoch=last.producer_epoch,
            base_sequence=(last.last_sequence + 7) & MAX_SEQUENCE,
        )
        try:
            self.log.append(bytearray(gap), leader_epoch=self._epoch, timestamp_ms=self._timestamp_ms)
        except KafkaError as error:
            answer = error.code
        else:
            answer = ErrorCode.NONE
        assert answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a gap after {last} is answered with {answer!r}"
        assert self.disk.operations == operations, "a duplicate is written"

    def _append_as_follower(self, draws: Draws) -> None:
        """Append batches that the leader has numbered, perhaps of a new epoch."""
        self._epoch += draws.below(2)
        data, offset = b"", self.model.log_end_offset
        for _ in range(draws.between(1, 3)):
            records = self._records(draws)
            records = [record._replace(offset=offset + number) for number, record in enumerate(records)]
            data += build_batch(records, base_offset=offset, partition_leader_epoch=self._epoch)
            offset += len(records)
        plan = self.log.plan_append_as_follower(bytearray(data), timestamp_ms=self._timestamp_ms)
        assert plan is not None, "whole batches are appended"
        self._finish(plan)

    def _next_in_transaction(self, producer_id: int) -> tuple[int, int]:
        """The (epoch, sequence) with which a transactional producer continues; a marker may have raised its epoch."""
        sent = [batch for batch in self.model.batches if batch.producer_id == producer_id]
        epoch = sent[-1].producer_epoch if sent else 0
        window = window_of(self.model.batches, producer_id)
        return epoch, (window[-1].last_sequence + 1) & MAX_SEQUENCE if window else 0

    def _transact(self, draws: Draws) -> None:
        producer_id = draws.choice(TRANSACTIONAL)
        self._append_data(self._transactional(draws, producer_id, base_offset=0))

    def _transactional(self, draws: Draws, producer_id: int, *, base_offset: int) -> bytes:
        epoch, sequence = self._next_in_transaction(producer_id)
        records = [record._replace(offset=base_offset + number) for number, record in enumerate(self._records(draws))]
        return build_batch(
            records,
            base_offset=base_offset,
            codec=self._codec(draws),
            partition_leader_epoch=self._epoch,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def _marker(self, draws: Draws, producer_id: int, *, raises: bool) -> bytes:
        return marker_batch(
            producer_id,
            self._next_in_transaction(producer_id)[0] + raises,
            is_commit=draws.chance(0.4),
            coordinator_epoch=0,
            timestamp_ms=self._timestamp_ms,
        )

    def _end_transaction(self, draws: Draws) -> None:
        """Append a marker, as the leader; some are repeated, and end nothing."""
        raises = draws.chance(0.5)
        marker = self._marker(draws, draws.choice(TRANSACTIONAL), raises=raises)
        plan = self.log.plan_marker(
            marker, leader_epoch=self._epoch, timestamp_ms=self._timestamp_ms, transaction_version=2 * raises
        )
        self._finish(plan)

    def _follow_transaction(self, draws: Draws) -> None:
        """Append a batch and its marker as a follower."""
        producer_id, offset = draws.choice(TRANSACTIONAL), self.model.log_end_offset
        data = self._transactional(draws, producer_id, base_offset=offset)
        marker = bytearray(self._marker(draws, producer_id, raises=draws.chance(0.5)))
        # These two fields are not covered by the checksum.
        marker[:8] = next(batches(data)).next_offset.to_bytes(8, "big")
        marker[12:16] = self._epoch.to_bytes(4, "big")
        plan = self.log.plan_append_as_follower(bytearray(data + marker), timestamp_ms=self._timestamp_ms)
        assert plan is not None, "whole batches are appended"
        self._finish(plan)

    # Other steps.

    def _lead(self, draws: Draws) -> None:
        self._epoch += draws.between(1, 2)
        self.log.assign_epoch(self._epoch)

    def _roll(self, _: Draws) -> None:
        self.log.roll(timestamp_ms=self._timestamp_ms)

    def _flush(self, _: Draws) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset, "a flush does not cover the log"

    def _flush_closed(self, _: Draws) -> None:
        """After a roll a broker flushes the closed segments, not the active one."""
        plan = self.log.plan_flush(below_active=True)
        if plan is not None:
            if plan.writes_epochs:
                self.log.write_epochs()
            self.log.write_flush(plan)
            self.log.commit_flush(plan)

    def _checkpoint(self, _: Draws) -> None:
        self._begin_checkpoint()
        self._directory.checkpoints.write_recovery_points()
        self._directory.checkpoints.write_log_starts()
        self.model.finish_checkpoint()

    def _begin_checkpoint(self) -> None:
        # A start from a segment's name is not in the file, so it is as durable as that name.
        start = self.log.log_start_offset
        self.model.begin_checkpoint(0 if start == self.log.segments.first.base_offset else start)

    def _truncate(self, draws: Draws) -> None:
        """A follower learns that its history is not the leader's, and continues with the leader's epoch."""
        start = max(self.log.local_log_start_offset, self.model.log_end_offset - 30)
        offset = draws.between(start, self.model.log_end_offset)
        self.model.begin_truncation(offset)
        self.log.truncate_to(offset)
        self.model.finish_truncation()
        self._epoch += draws.between(1, 2)
        if self.log.log_start_offset < self.model.checkpointed_start:
            # The owner of the checkpoint must not leave a start in it that is after the log's new end.
            self._settle()
            self._checkpoint(draws)

    def _restart_at(self, draws: Draws) -> None:
        """A follower restarts its log because the leader has none of its offsets left."""
        offset = self.model.log_end_offset + draws.below(20)
        self.model.begin_restart_at(offset)
        self.log.truncate_fully_and_start_at(offset)
        self.model.finish_restart_at(offset)
        self._epoch += 1

    def _delete_records(self, draws: Draws) -> None:
        offset = draws.between(self.log.log_start_offset, self.model.log_end_offset)
        self.model.raise_highest_start(offset)
        self.log.raise_log_start_offset(offset)

    def _retain(self, draws: Draws) -> None:
        log = self.log
        plan = log.plan_retention(high_watermark=log.log_end_offset, timestamp_ms=self._timestamp_ms)
        kept = [segment.base_offset for segment in log.segments if segment.base_offset not in plan.doomed]
        self.model.raise_highest_start(min([*kept, log.log_end_offset]) if plan.doomed else log.log_start_offset)
        log.apply_retention(plan, now_ms=self._timestamp_ms, timestamp_ms=self._timestamp_ms)
        self._unlink_doomed(draws)

    def _unlink_doomed(self, draws: Draws) -> None:
        self.log.unlink_doomed(self._timestamp_ms + draws.choice([0, 100_000]))

    def close(self) -> None:
        """Stop cleanly."""
        self.is_stopped = True
        self._begin_checkpoint()
        self._directory.close()
        self.model.finish_checkpoint()
        self._settle()

    def _restart(self, _: Draws) -> None:
        """Stop cleanly and start again."""
        self.close()
        self._directory, self.log = self._started()
        self.is_stopped = False
        assert self._reports == [], f"after a clean stop: {self._reports}"

    def _die(self, _: Draws) -> None:
        """The process dies between two operations; unsynced data stays unsynced."""
        self.disk = self.disk.crash(Loss.PROCESS_DEATH)
        self._on_new_disk(self.disk)
        self._directory, self.log = self._started()
