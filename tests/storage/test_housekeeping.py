from __future__ import annotations

import errno
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.storage.housekeeping import apply_retention, flush_logs, remove_deleted, watch_space
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.env import WALL_START_MS, MemoryEnv
from tests.storage.logs import FailingDisk, batch, offsets
from wire.errors import KafkaError


class Owner:
    """The owner of the logs: everything is committed, and all logs share one lock."""

    def __init__(self) -> None:
        self.lock = trio.Lock()

    def high_watermark(self, log: Log) -> int:
        return log.log_end_offset

    @asynccontextmanager
    async def locked(self, _log: Log) -> AsyncIterator[None]:
        async with self.lock:
            yield

    kept = locked


class TwoLocks(Owner):
    """Prevents the removal of a log with a separate lock."""

    @asynccontextmanager
    async def kept(self, _log: Log) -> AsyncIterator[None]:
        yield


class Watched(list[str]):
    """The operations of a disk; calls `look` for each."""

    def __init__(self, look: Callable[[str], None]) -> None:
        super().__init__()
        self._look = look

    def append(self, done: str) -> None:
        self._look(done)
        super().append(done)


class World:
    def __init__(self, path: Path) -> None:
        self.disk = FailingDisk()
        self.env = MemoryEnv(self.disk)
        self.directory = LogDirectory(str(path), disk=self.disk, node_id=1, new_uuid=lambda: uuid.UUID(int=1))
        self.reports: list[str] = []

    def log(self, **config: Any) -> Log:
        return self.directory.open_log(
            "orders", len(self.directory.logs), topic_id=uuid.UUID(int=9), config=LogConfig(**config), timestamp_ms=0
        )

    def deleted_files(self, log: Log) -> list[str]:
        return [name for name in self.disk.list(log.directory) if name.endswith(".deleted")]

    def append(self, log: Log, count: int, *, age_ms: int = 0) -> None:
        for _ in range(count):
            now = self.env.timestamp_ms() - age_ms
            log.append(batch(timestamp=now), leader_epoch=0, timestamp_ms=now)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data")


async def test_flushes_cover_closed_segments_and_whole_logs_after_flush_ms(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    rolled = world.log(segment_bytes=1_000)
    timed = world.log(flush_ms=60_000)
    world.append(rolled, 8)
    world.append(timed, 8)
    timed.last_flush_ms = world.env.now_ms()
    nursery.start_soon(
        partial(flush_logs, world.env, world.directory, Owner(), interval_ms=1_000, report=world.reports.append)
    )
    await trio.sleep(1.5)
    assert rolled.recovery_point == rolled.segments.active.base_offset == 5
    assert timed.recovery_point == 0
    await trio.sleep(60)
    assert timed.recovery_point == 8
    assert rolled.recovery_point == 5
    assert world.reports == []


async def test_old_segments_and_idle_producers_are_removed(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(
        segment_bytes=1_000, retention_ms=50_000, producer_id_expiration_ms=50_000, file_delete_delay_ms=2_000
    )
    world.append(log, 8)
    now = WALL_START_MS
    log.append(batch(timestamp=now, producer_id=4, producer_epoch=0, base_sequence=0), leader_epoch=0, timestamp_ms=now)
    run = partial(apply_retention, world.env, world.directory, Owner(), report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=1_000))
    nursery.start_soon(
        partial(remove_deleted, world.env, world.directory, interval_ms=500, report=world.reports.append)
    )
    await trio.sleep(49)
    assert offsets(log) == list(range(9))
    assert 4 in log.producers.producers
    await trio.sleep(3)
    assert log.log_start_offset == log.log_end_offset == 9
    assert 4 not in log.producers.producers
    assert world.deleted_files(log)
    await trio.sleep(3)
    assert not world.deleted_files(log)
    assert world.reports == []


YEAR_MS = 365 * 24 * 3_600_000


async def test_t2_a_clock_set_ahead_deletes_nothing_for_an_hour(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_ms=86_400_000, producer_id_expiration_ms=86_400_000)
    world.append(log, 8)
    now = WALL_START_MS
    log.append(batch(timestamp=now, producer_id=4, producer_epoch=0, base_sequence=0), leader_epoch=0, timestamp_ms=now)
    run = partial(apply_retention, world.env, world.directory, Owner(), report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=300_000))
    await trio.sleep(1_000)
    world.env.wall_jump_ms = YEAR_MS
    await trio.sleep(3_600)
    assert (offsets(log), len(log.producers)) == (list(range(9)), 1)
    assert len(world.reports) == 1
    await trio.sleep(900)
    assert (log.log_start_offset, len(log.producers)) == (9, 0)


async def test_t2_a_clock_corrected_within_the_hour_deletes_nothing(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_ms=86_400_000)
    world.append(log, 8)
    run = partial(apply_retention, world.env, world.directory, Owner(), report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=300_000))
    await trio.sleep(1)
    for jump_ms in (YEAR_MS, -YEAR_MS, 3_600_000, -3_600_000, 0):
        world.env.wall_jump_ms = jump_ms
        await trio.sleep(3_000)
    assert offsets(log) == list(range(8))
    await trio.sleep(80_000)
    assert log.log_start_offset == 8, "a day after it was written"


async def test_t2_size_based_deletion_continues_while_time_based_pauses(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_ms=86_400_000, retention_bytes=2_000)
    run = partial(apply_retention, world.env, world.directory, Owner(), report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=300_000))
    await trio.sleep(1_000)
    world.env.wall_jump_ms = YEAR_MS
    world.append(log, 40)
    await trio.sleep(900)
    assert 0 < log.log_start_offset < log.log_end_offset


async def test_retention_waits_for_the_partition_lock(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_ms=0)
    world.append(log, 8, age_ms=10)
    owner = Owner()
    run = partial(apply_retention, world.env, world.directory, owner, report=world.reports.append)
    async with owner.locked(log):
        nursery.start_soon(partial(run, interval_ms=1_000))
        await trio.sleep(5)
        assert log.log_start_offset == 0
    await trio.sleep(1)
    assert log.log_start_offset == 8


async def test_no_producer_expires_while_the_partition_is_locked(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(producer_id_expiration_ms=1)
    log.append(batch(timestamp=1, producer_id=4, producer_epoch=0, base_sequence=0), leader_epoch=0, timestamp_ms=1)
    owner = Owner()
    run = partial(apply_retention, world.env, world.directory, owner, report=world.reports.append)
    async with owner.locked(log):
        nursery.start_soon(partial(run, interval_ms=1_000))
        await trio.sleep(5)
        assert 4 in log.producers.producers
    await trio.sleep(3)  # active at the first check, idle at the next
    assert 4 not in log.producers.producers


async def test_a_failing_log_is_reported_and_the_loop_continues(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    first, second = world.log(segment_bytes=1_000), world.log(segment_bytes=1_000)
    world.append(first, 8)
    world.append(second, 8)
    world.disk.fail("open", error=24)
    nursery.start_soon(
        partial(flush_logs, world.env, world.directory, Owner(), interval_ms=1_000, report=world.reports.append)
    )
    await trio.sleep(1.5)
    assert len(world.reports) == 1
    assert second.recovery_point == 5
    assert first.recovery_point == 0
    await trio.sleep(1)
    assert first.recovery_point == 5


async def test_the_epochs_are_written_under_the_partition_lock(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(flush_ms=1)
    world.append(log, 3)
    owner = TwoLocks()
    run = partial(flush_logs, world.env, world.directory, owner, report=world.reports.append)
    async with owner.locked(log):
        nursery.start_soon(partial(run, interval_ms=1_000))
        await trio.sleep(5)
        assert not world.disk.exists(f"{log.directory}/leader-epoch-checkpoint")
        assert log.recovery_point == 0
    await trio.sleep(1)
    assert world.disk.exists(f"{log.directory}/leader-epoch-checkpoint")
    assert log.recovery_point == 3


async def test_a_lack_of_space_and_its_end_are_reported(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log()
    free = [5_000]
    world.disk.free_bytes = lambda _path: free[0]  # type: ignore[method-assign]
    run = partial(watch_space, world.env, world.directory, floor_bytes=1_000, report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=10_000))
    await trio.sleep(1)
    assert world.reports == []
    free[0] = 999
    await trio.sleep(10)
    with pytest.raises(KafkaError, match="too little space"):
        world.append(log, 1)
    free[0] = 2_000
    await trio.sleep(10)
    world.append(log, 1)
    assert len(world.reports) == 2


async def test_d9_a_fast_producer_cannot_use_up_the_reserved_space(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log, other = world.log(), world.log()
    size = len(batch())
    free = [1_000 + 5 * size]
    world.disk.free_bytes = lambda _path: free[0]  # type: ignore[method-assign]
    run = partial(watch_space, world.env, world.directory, floor_bytes=1_000, report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=10_000))
    await trio.sleep(1)
    world.append(log, 3)
    world.append(other, 2)
    for full in (log, other):
        with pytest.raises(KafkaError, match="too little space"):
            world.append(full, 1)
    assert (log.log_end_offset, other.log_end_offset) == (3, 2)
    free[0] = 1_000 + size
    await trio.sleep(10)
    world.append(log, 1)
    with pytest.raises(KafkaError):
        world.append(log, 1)
    assert world.reports == []


async def test_d8_a_failed_directory_refuses_appends_despite_free_space(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log()
    log.state.fail(OSError(5, "gone"))
    run = partial(watch_space, world.env, world.directory, floor_bytes=1_000, report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=1_000))
    await trio.sleep(5)
    with pytest.raises(KafkaError, match="is offline"):
        world.append(log, 1)


async def test_appends_do_not_wait_for_retentions_renames(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_ms=0)
    world.append(log, 100, age_ms=10)
    segments = len(log.segments)
    owner = TwoLocks()
    held: list[bool] = []
    world.disk.done = Watched(lambda done: held.append(owner.lock.locked() and done.endswith(".deleted")))
    nursery.start_soon(
        partial(
            apply_retention,
            world.env,
            world.directory,
            owner,
            interval_ms=1_000,
            report=world.reports.append,
        )
    )
    await trio.sleep(1.5)
    assert len([name for name in world.deleted_files(log) if name.endswith(".log.deleted")]) == segments
    assert not any(held)
    assert world.reports == []


async def test_retention_syncs_as_often_for_many_segments_as_for_two(world: World) -> None:
    syncs = []
    for records in (10, 200):
        log = world.log(segment_bytes=1_000, retention_bytes=0)
        world.append(log, records)
        world.disk.done.clear()
        plan = log.plan_retention(high_watermark=records, timestamp_ms=0)
        assert len(plan.doomed) > records // 10
        log.apply_retention(plan, now_ms=0, timestamp_ms=0)
        syncs.append(sum(done.startswith("sync_directory") for done in world.disk.done))
    assert syncs[0] == syncs[1]


@pytest.mark.parametrize("nth", [2, 3, 9, 15])
async def test_the_next_pass_retries_failed_renames(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock, nth: int
) -> None:
    del autojump_clock
    log = world.log(segment_bytes=1_000, retention_bytes=0, file_delete_delay_ms=0)
    world.append(log, 20)
    world.disk.fail("rename", nth=nth, error=errno.ENOMEM)
    run = partial(apply_retention, world.env, world.directory, TwoLocks(), report=world.reports.append)
    nursery.start_soon(partial(run, interval_ms=1_000))
    await trio.sleep(1.5)
    assert len(world.reports) == 1
    assert log.log_start_offset == 20
    world.append(log, 1)
    await trio.sleep(1)
    assert len(world.reports) == 1
    log.unlink_doomed(1 << 40)
    assert {name[:20] for name in world.disk.list(log.directory) if name[0] == "0"} == {f"{21:020d}"}
    assert offsets(log) == []


async def test_retired_segments_do_not_reappear_after_a_clean_shutdown(world: World) -> None:
    log = world.log(segment_bytes=1_000, retention_bytes=0)
    world.append(log, 20)
    log.retire(log.plan_retention(high_watermark=20, timestamp_ms=0), timestamp_ms=0)
    start = log.log_start_offset
    world.directory.close()
    again = LogDirectory(world.directory.path, disk=world.disk, node_id=1, new_uuid=lambda: uuid.UUID(int=1))
    found = again.open_log("orders", 0, topic_id=uuid.UUID(int=9), config=LogConfig(), timestamp_ms=0)
    assert found.log_start_offset == start > 0
