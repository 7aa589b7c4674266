from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import Reason, RetentionPlan, judge, local_limits, plan_retention
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from tests.storage.logs import batch, fill, offsets, open_log
from tests.storage.test_log import names
from tests.sweep.workload import start_broker

NO_LIMIT = LogConfig(retention_ms=-1, retention_bytes=-1)


@dataclass
class Piece:
    base_offset: int
    size: int
    timestamp: int


def decide(
    pieces: list[Piece],
    config: LogConfig,
    *,
    end: int = 40,
    start: int = 0,
    high_watermark: int = 40,
    now: int = 10_000,
    remote: int | None = None,
) -> RetentionPlan:
    verdicts = judge(
        pieces,
        largest_timestamp=lambda at: pieces[at].timestamp,
        limits=local_limits(config, is_copied=remote is not None),
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=high_watermark,
        timestamp_ms=now,
        waits_for_copy=remote is not None,
        highest_offset_in_remote_storage=remote,
    )
    return plan_retention(verdicts, is_copied=remote is not None)


def pieces() -> list[Piece]:
    return [Piece(0, 100, 1_000), Piece(10, 100, 2_000), Piece(20, 100, 3_000), Piece(30, 50, 4_000)]


@pytest.mark.parametrize(
    ("limit", "doomed"),
    [(350, ()), (251, ()), (250, (0,)), (249, (0,)), (150, (0, 10)), (50, (0, 10, 20)), (1, (0, 10, 20))],
)
def test_size_deletes_whole_segments_down_to_the_limit(limit: int, doomed: tuple[int, ...]) -> None:
    assert decide(pieces(), LogConfig(retention_ms=-1, retention_bytes=limit)).doomed == doomed


def test_a_limit_of_zero_bytes_deletes_the_active_segment_too() -> None:
    plan = decide(pieces(), LogConfig(retention_ms=-1, retention_bytes=0))
    assert plan == RetentionPlan((0, 10, 20, 30), rolls=True)


@pytest.mark.parametrize(
    ("limit", "doomed", "rolls"),
    [(9_000, (), False), (8_999, (0,), False), (7_500, (0, 10), False), (5_999, (0, 10, 20, 30), True)],
)
def test_time_deletes_segments_whose_newest_record_is_too_old(limit: int, doomed: tuple[int, ...], rolls: bool) -> None:
    assert decide(pieces(), LogConfig(retention_ms=limit)) == RetentionPlan(doomed, rolls)


@pytest.mark.parametrize("limits", [{"retention_ms": 1_000}, {"retention_ms": -1, "retention_bytes": 0}])
@pytest.mark.parametrize("remote", [None, 39])
def test_an_empty_closed_segment_does_not_stop_retention(limits: dict[str, int], remote: int | None) -> None:
    """A log that skips offsets may have one: a crash can undo its removal."""
    held = [Piece(0, 100, 1_000), Piece(10, 0, 1_500), Piece(20, 100, 3_000), Piece(30, 0, 4_000)]
    assert decide(held, LogConfig(**limits), remote=remote) == RetentionPlan((0, 10, 20))  # type: ignore[arg-type]


def test_time_stops_at_the_first_segment_that_is_young_enough() -> None:
    mixed = [Piece(0, 1, 1_000), Piece(10, 1, 9_000), Piece(20, 1, 1_000), Piece(30, 1, 9_999)]
    assert decide(mixed, LogConfig(retention_ms=5_000)).doomed == (0,)


def test_segments_below_the_log_start_are_deleted_even_without_retention() -> None:
    assert decide(pieces(), NO_LIMIT, start=20).doomed == (0, 10)
    assert decide(pieces(), NO_LIMIT, start=19).doomed == (0,)
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1)
    assert decide(pieces(), compacted, start=10).doomed == (0,)


def test_nothing_at_or_above_the_high_watermark_is_deleted() -> None:
    assert decide(pieces(), LogConfig(retention_ms=1), high_watermark=19).doomed == (0,)
    assert decide(pieces(), LogConfig(retention_ms=1), high_watermark=20).doomed == (0, 10)
    assert not decide(pieces(), LogConfig(retention_ms=1), high_watermark=5)


def test_an_empty_active_segment_is_not_deleted() -> None:
    empty = [Piece(0, 100, 1_000), Piece(10, 0, -1)]
    assert decide(empty, LogConfig(retention_ms=1), end=10) == RetentionPlan((0,), rolls=False)


def test_size_and_time_together_delete_what_either_would() -> None:
    assert decide(pieces(), LogConfig(retention_ms=8_500, retention_bytes=200)).doomed == (0,)
    assert decide(pieces(), LogConfig(retention_ms=7_500, retention_bytes=249)).doomed == (0, 10)


def test_in_a_tiered_log_local_limits_apply_to_copied_segments() -> None:
    config = LogConfig(retention_ms=-1, local_retention_ms=1)
    assert decide(pieces(), config, remote=-1).doomed == ()
    assert decide(pieces(), config, remote=18).doomed == (0,)
    assert decide(pieces(), config, remote=29).doomed == (0, 10, 20)
    # The active segment is closed, so that it can be copied to the tier.
    assert decide(pieces(), config, remote=39).rolls
    assert decide(pieces(), LogConfig(retention_ms=1, local_retention_ms=-2), remote=9).doomed == (0,)


def test_retention_raises_the_start_and_unlinks_after_the_delay(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2_000, retention_ms=1_000, file_delete_delay_ms=500)
    log = open_log(tmp_path, config=config)
    fill(log, 50)
    bases = names(tmp_path, ".log")
    plan = log.plan_retention(high_watermark=50, timestamp_ms=1_000 + bases[2] - 1 + 1_001)
    assert plan.doomed == tuple(bases[:2])
    log.apply_retention(plan, now_ms=10_000, timestamp_ms=0)
    assert log.log_start_offset == log.local_log_start_offset == bases[2]
    assert names(tmp_path, ".log") == bases[2:]
    assert names(tmp_path, ".log.deleted") == bases[:2]
    assert offsets(log) == list(range(bases[2], 50))
    assert log.unlink_doomed(10_499) == 0
    assert log.unlink_doomed(10_500) == 7
    assert list(tmp_path.glob("*.deleted")) == []


def test_offsets_continue_after_everything_has_expired(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=2_000, retention_ms=1_000))
    fill(log, 50)
    log.apply_retention(log.plan_retention(high_watermark=50, timestamp_ms=99_999), now_ms=0, timestamp_ms=99_999)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert not log.plan_retention(high_watermark=50, timestamp_ms=999_999)
    assert not log.may_need_retention
    log.close()
    log = open_log(tmp_path, clean_shutdown=True)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert log.append(batch(), leader_epoch=0, timestamp_ms=0).first_offset == 50


def test_the_next_retention_removes_segments_of_deleted_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=2_000))
    fill(log, 50)
    assert log.raise_log_start_offset(30)
    assert not log.raise_log_start_offset(20)
    log.apply_retention(log.plan_retention(high_watermark=50, timestamp_ms=0), now_ms=0, timestamp_ms=0)
    assert log.log_start_offset == 30
    assert names(tmp_path, ".log")[0] <= 30 < names(tmp_path, ".log")[1]


def test_retention_of_a_tiered_log_raises_only_the_local_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=2_000, local_retention_bytes=0))
    fill(log, 50)
    plan = log.plan_retention(high_watermark=50, timestamp_ms=0, highest_offset_in_remote_storage=25)
    log.apply_retention(plan, now_ms=0, timestamp_ms=0)
    assert log.log_start_offset == 0
    assert 0 < log.local_log_start_offset <= 26
    assert offsets(log) == list(range(log.local_log_start_offset, 50))


def test_each_pass_logs_its_removals_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=2_000, retention_ms=1_000, retention_bytes=6_000))
    fill(log, 100)
    log.raise_log_start_offset(names(tmp_path, ".log")[1])
    bases = names(tmp_path, ".log")
    plan = log.plan_retention(high_watermark=100, timestamp_ms=1_000 + bases[-2] + 1_000)
    assert len(plan.reasons) == len(plan.doomed)
    assert plan.reasons[0] is Reason.LOG_START
    assert set(plan.reasons[1:]) == {Reason.SIZE, Reason.TIME}
    with caplog.at_level(logging.INFO, logger="kbroker"):
        log.apply_retention(plan, now_ms=0, timestamp_ms=0)
    (line,) = [record for record in caplog.records if record.getMessage() == "retention removes segments"]
    fields = line.__dict__["kbroker_fields"]
    assert line.levelno == logging.INFO
    assert (fields["topic"], fields["partition"], fields["segments"]) == ("orders", 0, len(plan.doomed))
    assert fields["below_offset"] == log.log_start_offset
    assert fields["reasons"] == "log start offset, retention.bytes, retention.ms"


def test_the_line_of_a_tiered_log_names_its_local_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = LogConfig(segment_bytes=2_000, remote_storage_enable=True, local_retention_bytes=0, retention_ms=-1)
    log = open_log(tmp_path, config=config)
    fill(log, 100)
    plan = log.plan_retention(high_watermark=100, timestamp_ms=0, highest_offset_in_remote_storage=50)
    with caplog.at_level(logging.INFO, logger="kbroker"):
        log.apply_retention(plan, now_ms=0, timestamp_ms=0)
    (line,) = [record for record in caplog.records if "local retention removes segments" in record.getMessage()]
    assert line.__dict__["kbroker_fields"]["reasons"] == "local.retention.bytes"
    assert log.log_start_offset == 0


@pytest.mark.parametrize("loss", [Loss.NAMES_LOST, Loss.SECTORS])
def test_d7_segments_of_two_passes_reappear_contiguously_or_not_at_all(loss: Loss) -> None:
    config = LogConfig(segment_bytes=2_000, retention_ms=-1, file_delete_delay_ms=0)
    for seed in range(12):
        disk = SimulatedDisk()
        directory, log = start_broker(disk, config, timestamp_ms=0, report=lambda _: None)
        fill(log, 50)
        log.flush()
        directory.checkpoints.write_recovery_points()
        for _ in range(3):
            log.raise_log_start_offset(tuple(log.segments)[1].base_offset)
            plan = log.plan_retention(high_watermark=50, timestamp_ms=0)
            assert len(plan.doomed) == 1
            log.apply_retention(plan, now_ms=0, timestamp_ms=0)
            log.unlink_doomed(0)
        survivor = disk.crash(loss, seed=seed)
        _, log = start_broker(survivor, config, timestamp_ms=0, report=lambda _: None)
        assert offsets(log) == list(range(log.log_start_offset, 50))


@pytest.mark.parametrize("loss", list(Loss))
def test_d7_a_crash_during_a_long_pass_leaves_no_hole(loss: Loss) -> None:
    config = LogConfig(segment_bytes=2_000, retention_ms=-1, retention_bytes=0, file_delete_delay_ms=0)
    disk = SimulatedDisk()
    directory, log = start_broker(disk, config, timestamp_ms=0, report=lambda _: None)
    fill(log, 100)
    log.flush()
    directory.checkpoints.write_recovery_points()
    begins: set[int] = set()

    def crash(operation: Operation) -> None:
        for seed in range(4):
            survivor = disk.crash(loss, seed=seed, during=operation)
            _, again = start_broker(survivor, config, timestamp_ms=0, report=lambda _: None)
            assert offsets(again) == list(range(again.log_start_offset, 100))
            begins.add(again.log_start_offset)

    disk.observer = crash
    plan = log.plan_retention(high_watermark=100, timestamp_ms=0)
    assert len(plan.doomed) > 5
    log.apply_retention(plan, now_ms=0, timestamp_ms=0)
    log.unlink_doomed(0)
    assert begins == {0, log.log_start_offset}, "all of them reappear or none"


class RacingDisk(RealDisk):
    """Runs a hook just before it creates an index file."""

    def __init__(self) -> None:
        self.hook: Callable[[], None] | None = None

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        if create and path.endswith("index") and self.hook is not None:
            hook, self.hook = self.hook, None
            hook()
        return super().open(path, create=create, writable=writable)


def test_an_index_rebuilt_during_its_segments_removal_is_removed_too(tmp_path: Path) -> None:
    disk = RacingDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(segment_bytes=2_000, index_interval_bytes=500))
    fill(log, 50)
    first = log.segments.first
    log.raise_log_start_offset(20)
    log.files.pool.close()

    def remove() -> None:
        log.apply_retention(log.plan_retention(high_watermark=50, timestamp_ms=0), now_ms=0, timestamp_ms=0)

    disk.hook = remove
    assert first.rebuild_indexes()
    assert log.segments.first is not first
    assert not Path(first.path(".index")).exists()
    assert not Path(first.path(".timeindex")).exists()
    assert not first.rebuild_indexes()
