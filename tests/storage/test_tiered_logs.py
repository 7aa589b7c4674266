"""Storage of logs whose older segments are in the tier; storage itself does not know the tier."""

from __future__ import annotations

import errno
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.ports import run_here
from kbroker.storage.checkpoint import read_offsets
from kbroker.storage.housekeeping import apply_retention_once
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from kbroker.storage.retention import RetentionPlan
from kbroker.storage.sealing import seal
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import MemoryEnv
from tests.storage.logs import batch, fill
from wire.errors import ErrorCode, KafkaError

TOPIC_ID = uuid.UUID(int=9)


class Owner:
    """The owner of the logs: everything is committed, and the test sets the contents of the tier."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.highest: int | None = None
        self.written: list[int] = []

    def high_watermark(self, log: Log) -> int:
        return log.log_end_offset

    def highest_offset_in_remote_storage(self, log: Log) -> int | None:
        return self.highest

    async def write_log_starts(self) -> None:
        await trio.lowlevel.checkpoint()
        self.directory.checkpoints.write_log_starts()
        for log in self.directory.open_logs():
            self.written.append(min(int(name[:20]) for name in log.disk.list(log.directory) if name.endswith(".log")))

    @asynccontextmanager
    async def locked(self, _log: Log) -> AsyncIterator[None]:
        yield

    kept = locked


def opened(disk: SimulatedDisk) -> LogDirectory:
    ids = iter(range(1, 100))
    return LogDirectory("/data", disk=disk, node_id=1, cluster_id="c", new_uuid=lambda: uuid.UUID(int=next(ids)))


def tiered(directory: LogDirectory, **config: Any) -> Log:
    chosen = LogConfig(**{"segment_bytes": 800, "remote_storage_enable": True, "file_delete_delay_ms": 0, **config})
    return directory.open_log("orders", 0, topic_id=TOPIC_ID, config=chosen, timestamp_ms=0)


async def retain(directory: LogDirectory, owner: Owner, log: Log) -> None:
    env = MemoryEnv(directory.disk)
    await apply_retention_once(env, owner, log, CautiousClock(env, report=lambda _: None))


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# --- retention --------------------------------------------------------------------------------------------------------


async def test_local_segments_are_deleted_only_after_copying(autojump_clock: MockClock) -> None:
    directory = opened(SimulatedDisk())
    log, owner = tiered(directory, local_retention_bytes=0, retention_ms=-1), Owner(directory)
    fill(log, 14)
    everything = bases(log)
    assert everything == [0, 4, 8, 12]
    await retain(directory, owner, log)
    assert bases(log) == everything, "as long as the contents of the tier are unknown"
    owner.highest = -1
    await retain(directory, owner, log)
    assert bases(log) == everything
    owner.highest = 6
    await retain(directory, owner, log)
    assert bases(log) == everything[1:], "the second is only partly copied"
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 4)
    owner.highest = 11
    await retain(directory, owner, log)
    assert bases(log) == [12, 14], "the active segment is closed, so that it can be copied"
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 12)


@pytest.mark.parametrize("is_copied", [True, False])
async def test_switching_copying_does_not_change_a_plan_already_made(
    is_copied: bool, autojump_clock: MockClock
) -> None:
    """Otherwise records in the tier would be hidden, or the tier would be asked for records that it does not have."""
    directory = opened(SimulatedDisk())
    log = tiered(directory, remote_log_copy_disable=not is_copied, local_retention_bytes=0, retention_bytes=0)
    owner = Owner(directory)
    owner.highest = 11
    fill(log, 14)

    class ChangedAfterPlanning(MemoryEnv):
        plans = 0

        async def run_blocking(self, function: Any, *arguments: Any) -> Any:
            result = await super().run_blocking(function, *arguments)
            self.plans += isinstance(result, RetentionPlan)
            if self.plans == 2:  # the first only reads timestamps into memory
                log.reconfigure(replace(log.config, remote_log_copy_disable=is_copied))
            return result

    env = ChangedAfterPlanning(directory.disk)
    await apply_retention_once(env, owner, log, CautiousClock(env, report=lambda _: None))
    assert log.local_log_start_offset >= 12
    assert log.log_start_offset == (0 if is_copied else log.local_log_start_offset)


async def test_local_limits_apply_despite_an_empty_cleanup_policy(autojump_clock: MockClock) -> None:
    directory = opened(SimulatedDisk())
    log, owner = tiered(directory, cleanup_policy=frozenset(), local_retention_bytes=0), Owner(directory)
    fill(log, 9)
    owner.highest = 7
    await retain(directory, owner, log)
    assert log.local_log_start_offset == 8
    assert log.log_start_offset == 0
    plain = directory.open_log(
        "plain",
        0,
        topic_id=TOPIC_ID,
        config=LogConfig(segment_bytes=800, cleanup_policy=frozenset(), retention_bytes=0),
        timestamp_ms=0,
    )
    fill(plain, 9)
    await retain(directory, owner, plain)
    assert len(plain.segments) == 3


async def test_local_limits_alone_apply_to_a_single_active_segment(
    autojump_clock: MockClock,
) -> None:
    directory = opened(SimulatedDisk())
    log = tiered(directory, retention_ms=-1, local_retention_ms=1_000)
    owner = Owner(directory)
    fill(log, 2)
    owner.highest = -1
    assert log.may_need_retention
    await retain(directory, owner, log)
    assert bases(log) == [0, 2]


async def test_kafka_17236_without_copying_retention_checkpoints_the_log_start_first(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a restart looks in the tier for records that were never copied."""
    disk = SimulatedDisk()
    directory = opened(disk)
    log = tiered(directory, remote_log_copy_disable=True, retention_bytes=900)
    owner = Owner(directory)
    fill(log, 20)
    first = bases(log)[0]
    await retain(directory, owner, log)
    assert owner.written == [first], "the segments still existed when it was written"
    assert log.log_start_offset == log.local_log_start_offset > 8
    assert read_offsets(disk, "/data/log-start-offset-checkpoint") == {("orders", 0): log.log_start_offset}
    directory.close()
    again = tiered(opened(disk), remote_log_copy_disable=True, retention_bytes=900)
    assert again.log_start_offset == log.log_start_offset


async def test_retention_checkpoints_the_log_start_before_removing_deleted_records(autojump_clock: MockClock) -> None:
    """They were never in the tier, and DeleteRecords may have crashed before it wrote the checkpoint."""
    directory = opened(SimulatedDisk())
    log, owner = tiered(directory, retention_ms=-1), Owner(directory)
    fill(log, 14)
    owner.highest = -1
    log.raise_log_start_offset(9)
    await retain(directory, owner, log)
    assert bases(log) == [8, 12]
    assert owner.written == [0], "the segments still existed when it was written"
    await retain(directory, owner, log)
    assert owner.written == [0], "it is not written without need"


# --- starts and epochs ------------------------------------------------------------------------------------------------


def test_kafka_16146_the_checkpoint_always_has_a_tiered_logs_start() -> None:
    disk = SimulatedDisk()
    directory = opened(disk)
    log = tiered(directory)
    fill(log, 14)
    plan = RetentionPlan((0, 4), is_copied=True)
    log.apply_retention(plan, now_ms=0, timestamp_ms=0)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    log.raise_log_start_offset(8)  # everything in the tier has expired
    directory.checkpoints.write_log_starts()
    survivor = disk.crash(Loss.PROCESS_DEATH)
    again = tiered(opened(survivor))
    assert (again.log_start_offset, again.local_log_start_offset) == (8, 8)


@pytest.mark.parametrize("clean", [True, False])
def test_kafka_15351_the_local_start_never_replaces_the_log_start(clean: bool) -> None:
    disk = SimulatedDisk()
    directory = opened(disk)
    log = tiered(directory)
    for epoch in range(4):
        log.assign_epoch(epoch)
        fill(log, 5, leader_epoch=epoch)
    log.flush()
    log.apply_retention(RetentionPlan((0, 4, 8), is_copied=True), now_ms=0, timestamp_ms=0)
    log.raise_log_start_offset(2)
    epochs = log.leader_epochs.entries
    assert epochs == [(0, 2), (1, 5), (2, 10), (3, 15)]
    if clean:
        directory.close()
    else:
        directory.checkpoints.write_log_starts()
        disk = disk.crash(Loss.PROCESS_DEATH)
    again = tiered(opened(disk))
    assert (again.log_start_offset, again.local_log_start_offset) == (2, 12)
    assert again.leader_epochs.entries == epochs
    again.truncate_to(13)
    assert (again.log_start_offset, again.log_end_offset) == (2, 13)
    again.truncate_to(7)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (2, 7, 7)


def test_rebuilt_epochs_keep_those_of_remote_only_segments() -> None:
    disk = SimulatedDisk()
    directory = opened(disk)
    log = tiered(directory)
    for epoch in range(4):
        log.assign_epoch(epoch)
        fill(log, 5, leader_epoch=epoch)
    log.apply_retention(RetentionPlan((0, 4, 8), is_copied=True), now_ms=0, timestamp_ms=0)
    log.flush()
    directory.close()
    path = "/data/orders-0/leader-epoch-checkpoint"
    file = disk.open(path)
    file.truncate(0)
    file.pwrite(b"0\n2\n0 0\n1 5\n", 0)  # an older checkpoint; only the batches have the newer epochs
    again = tiered(opened(disk))
    assert again.leader_epochs.entries == [(0, 0), (1, 5), (2, 12), (3, 15)]


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
def test_the_epochs_of_remote_only_segments_are_durable_before_local_retention_removes_them(loss: Loss) -> None:
    """A follower may remove what its leader has copied before its own first flush (seed 131 of the small plans)."""
    disk = SimulatedDisk()
    log = tiered(opened(disk))
    for epoch in range(4):
        log.assign_epoch(epoch)
        fill(log, 5, leader_epoch=epoch)
    log.apply_retention(RetentionPlan((0, 4, 8), is_copied=True), now_ms=0, timestamp_ms=0)
    again = tiered(opened(disk.crash(loss)))
    assert again.leader_epochs.entries[:3] == [(0, 0), (1, 5), (2, 10)]


def test_local_retention_frees_space_although_the_epochs_cannot_be_written() -> None:
    disk = SimulatedDisk()
    log = tiered(opened(disk))
    log.assign_epoch(0)
    fill(log, 14)
    disk.fail("rename", "*checkpoint*", error=errno.ENOSPC)
    log.apply_retention(RetentionPlan((0, 4, 8), is_copied=True), now_ms=0, timestamp_ms=0)
    assert bases(log) == [12]
    log.flush()
    assert tiered(opened(disk.crash(Loss.ONLY_SYNCED))).leader_epochs.entries == [(0, 0)]


def test_older_epochs_are_added_before_the_first_if_they_fit() -> None:
    epochs = LeaderEpochs([(5, 50), (7, 70)])
    epochs.complete_start([(1, 10), (3, 30), (5, 45), (6, 48)])
    assert epochs.entries == [(1, 10), (3, 30), (5, 45), (7, 70)]
    assert epochs.latest == 7
    assert epochs.epoch_for_offset(12) == 1
    epochs.truncate_from_start(35)
    assert epochs.entries[0] == (3, 35)
    epochs.complete_start([(3, 30), (5, 45), (7, 70), (9, 90)])
    assert epochs.entries == [(3, 30), (5, 45), (7, 70)], "the older entries may include known ones"
    epochs.clear()
    epochs.complete_start([(3, 30), (5, 45)])
    assert (epochs.entries, epochs.latest) == ([(3, 30), (5, 45)], 5)


# --- sealing ----------------------------------------------------------------------------------------------------------


def closed_log(**config: Any) -> Log:
    log = tiered(opened(SimulatedDisk()), index_interval_bytes=0, **config)
    fill(log, 14)
    log.flush()
    return log


def test_a_sealed_segment_has_its_files_and_age() -> None:
    log = closed_log()
    second = list(log.segments)[1]
    sealed = seal(log, second, next_offset=8, run=run_here)
    assert (sealed.base_offset, sealed.next_offset, sealed.size) == (4, 8, second.size)
    assert sealed.max_timestamp_ms == 1_007
    assert sealed.transaction_index is None
    for path in (sealed.log, sealed.offset_index, sealed.time_index, sealed.producer_snapshot):
        assert log.disk.exists(path)
    index = log.disk.open(second.path(".txnindex"), create=True)
    assert seal(log, second, next_offset=8, run=run_here).transaction_index is None, "an empty one counts as missing"
    index.pwrite(b"x" * 34, 0)
    assert seal(log, second, next_offset=8, run=run_here).transaction_index == second.path(".txnindex")


def test_d7_producers_of_remote_only_segments_survive_a_power_loss() -> None:
    """No local batch has their state; a retry would be appended twice."""
    disk = SimulatedDisk()
    log = tiered(opened(disk))
    sent = [batch(producer_id=1, producer_epoch=0, base_sequence=sequence) for sequence in range(5)]
    for one in sent:
        log.append(one, leader_epoch=0, timestamp_ms=0)
        log.roll(timestamp_ms=0)
    log.flush()
    *closed, active = log.segments
    for segment in closed:
        seal(log, segment, next_offset=segment.base_offset + 1, run=run_here)
    log.apply_retention(RetentionPlan(tuple(bases(log)[:-1]), is_copied=True), now_ms=0, timestamp_ms=0)
    log = tiered(opened(disk.crash(Loss.ONLY_SYNCED)))
    assert bases(log) == [active.base_offset]
    again = [log.append(one, leader_epoch=0, timestamp_ms=0) for one in sent]
    assert [plan.first_offset if plan.is_duplicate else None for plan in again] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("position", [3, 13, 20, 40, 100, 193, -1])
def test_d10_sealing_detects_a_flipped_bit_anywhere(position: int) -> None:
    log = closed_log()
    first = log.segments.first
    file = log.disk.open(first.log_path)
    at = position if position >= 0 else first.size - 1
    # The CRC does not cover a batch's offset and leader epoch, so these are compared with the log.
    byte = file.pread(1, at)[0]
    file.pwrite(bytes([byte ^ 0x40]), at)
    log.files.pool.forget(first.log_path)
    with pytest.raises(KafkaError) as caught:
        seal(log, first, next_offset=4, run=run_here)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_d10_sealing_detects_a_truncated_or_too_long_segment() -> None:
    for size in (-20, 5):
        log = closed_log()
        first = log.segments.first
        file = log.disk.open(first.log_path)
        if size < 0:
            file.truncate(first.size + size)
        else:
            file.pwrite(bytes(size), first.size)
        with pytest.raises(KafkaError, match="damaged"):
            seal(log, first, next_offset=4, run=run_here)


def test_sealing_detects_a_segment_that_overlaps_the_next() -> None:
    log = closed_log()
    with pytest.raises(KafkaError, match="damaged"):
        seal(log, log.segments.first, next_offset=3, run=run_here)


def test_a_time_index_entry_added_by_a_close_is_valid() -> None:
    """A close adds the largest timestamp so far to the time index of the active segment."""
    disk = SimulatedDisk()
    directory = opened(disk)
    log = tiered(directory, segment_bytes=4_000, index_interval_bytes=1_000)
    fill(log, 7)
    directory.close()
    directory = opened(disk)
    reports: list[str] = []
    log = tiered(directory, segment_bytes=4_000, index_interval_bytes=1_000)
    log.files.report = reports.append
    fill(log, 7)
    log.roll(timestamp_ms=0)
    log.flush()
    before = log.segments.first.time_index.read_all()
    seal(log, log.segments.first, next_offset=14, run=run_here)
    assert reports == []
    assert log.segments.first.time_index.read_all() == before


def test_sealing_rebuilds_indexes_of_another_index_interval() -> None:
    log = closed_log()
    log.segments.first.interval_bytes = 300
    reports: list[str] = []
    log.files.report = reports.append
    seal(log, log.segments.first, next_offset=4, run=run_here)
    assert "rebuilt" in reports[0]
    seal(log, log.segments.first, next_offset=4, run=run_here)
    assert len(reports) == 1


def test_sealing_a_deleted_segment_fails_without_failing_the_disk() -> None:
    log = closed_log()
    first = log.segments.first
    log.apply_retention(RetentionPlan((0,), is_copied=True), now_ms=0, timestamp_ms=0)
    with pytest.raises(KafkaError) as caught:
        seal(log, first, next_offset=4, run=run_here)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.state.failure is None, "nothing is wrong with the disk"


# --- flushing on demand -----------------------------------------------------------------------------------------------


def test_may_hold_earlier_than_compares_with_the_previous_segments_age() -> None:
    now = [1_000]
    disk = SimulatedDisk(timestamp_ms=lambda: now[0])
    log = tiered(opened(disk))
    assert not log.may_hold_earlier_than(1 << 60), "an empty log holds nothing"
    log.append(batch(), leader_epoch=0, timestamp_ms=now[0])
    assert log.may_hold_earlier_than(now[0] + 1)
    log.roll(timestamp_ms=5_000)
    log.append(batch(), leader_epoch=0, timestamp_ms=6_000)
    assert not log.may_hold_earlier_than(5_000)
    assert log.may_hold_earlier_than(5_001)
