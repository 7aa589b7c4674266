"""Recovery in worker processes gives the same logs as recovery in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.worker import Workers
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.recovering import LARGE_BYTES, LogToRecover, RecoveredLog, recover_log, worth_a_worker
from tests.runtime.jobs import DeadlyDisk
from tests.storage.logs import batch, offsets, open_log
from wire.errors import ErrorCode, KafkaError

CONFIG = LogConfig(segment_bytes=4_000, index_interval_bytes=300)
COUNT = 95


@pytest.fixture
def worker_reports() -> list[str]:
    return []


@pytest.fixture
def workers(worker_reports: list[str]) -> Iterator[Workers]:
    made = Workers(report=worker_reports.append, tries=2, niceness=0)
    yield made
    made.close()
    assert not made.pids


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A log of several segments and leader epochs, with batches of one producer and a torn end."""
    directory = tmp_path / "crashed"
    directory.mkdir()
    log = open_log(directory, config=CONFIG)
    for number in range(COUNT):
        sent = batch(timestamp=1_000 + number, producer_id=7, producer_epoch=0, base_sequence=number)
        log.append(sent, leader_epoch=number // 40, timestamp_ms=0)
    log.files.pool.close()
    with open(log.segments.active.log_path, "ab") as file:
        file.write(b"torn" * 40)
    return directory


def to_recover(directory: Path) -> LogToRecover:
    return LogToRecover(str(directory), CONFIG, 0, 0, 5_000, 0)


def opened(directory: Path, recovered: RecoveredLog | None = None) -> Log:
    return open_log(directory, config=CONFIG, timestamp_ms=5_000, recovered=recovered)


def check_equal(log: Log, plain: Log) -> None:
    """Check that state and files are the same as after recovery in this process."""
    assert offsets(log) == offsets(plain) == list(range(COUNT))
    assert log.leader_epochs.entries == plain.leader_epochs.entries == [(0, 0), (1, 40), (2, 80)]
    assert (log.log_start_offset, log.recovery_point) == (plain.log_start_offset, plain.recovery_point)
    assert log.files.snapshots == plain.files.snapshots
    ours, theirs = log.producers.producers[7], plain.producers.producers[7]
    assert (ours.batches, ours.last_timestamp_ms) == (theirs.batches, theirs.last_timestamp_ms)
    for segment, other in zip(log.segments, plain.segments, strict=True):
        assert segment.offset_index.read_all() == other.offset_index.read_all()
        assert segment.time_index.read_all() == other.time_index.read_all()
        for name in ("base_offset", "size", "max_timestamp", "first_timestamp", "last_index_position"):
            assert getattr(segment, name) == getattr(other, name)
    assert files_in(Path(log.directory)) == files_in(Path(plain.directory))


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_worker_recovers_what_this_process_recovers(
    crashed: Path, workers: Workers, worker_reports: list[str]
) -> None:
    here = Path(shutil.copytree(crashed, crashed.parent / "here"))
    found = workers.run(recover_log, RealDisk(), to_recover(crashed))
    log, plain = opened(crashed, found), opened(here)
    check_equal(log, plain)
    assert workers.pids
    assert not worker_reports


def test_a_log_recovered_by_a_worker_can_be_appended_to(crashed: Path, workers: Workers) -> None:
    found = workers.run(recover_log, RealDisk(), to_recover(crashed))
    log = opened(crashed, found)
    window = log.producers.producers[7].batches
    assert len(window) == 5
    assert log.segments.active.base_offset > window[0].first_offset, "the window spans a roll"
    for remembered in window:
        again = batch(producer_id=7, producer_epoch=0, base_sequence=remembered.first_sequence)
        plan = log.append(again, leader_epoch=2, timestamp_ms=0)
        assert (plan.is_duplicate, plan.first_offset) == (True, remembered.first_offset)
    log.append(batch(producer_id=7, producer_epoch=0, base_sequence=COUNT), leader_epoch=2, timestamp_ms=0)
    log.close()
    clean = open_log(crashed, config=CONFIG, clean_shutdown=True)
    assert offsets(clean) == list(range(COUNT + 1))


def test_the_death_of_a_worker_does_not_affect_recovery(
    crashed: Path, workers: Workers, worker_reports: list[str]
) -> None:
    here = Path(shutil.copytree(crashed, crashed.parent / "here"))
    found = workers.run(recover_log, DeadlyDisk("write"), to_recover(crashed))
    assert len(worker_reports) == 2, "two workers died, then this process recovered it"
    check_equal(opened(crashed, found), opened(here))


def test_a_failed_recovery_does_not_affect_other_logs(crashed: Path, workers: Workers) -> None:
    broken = crashed.parent / "broken"
    (broken / f"{0:020d}.log").mkdir(parents=True)
    failed, found = (workers.run(recover_log, RealDisk(), to_recover(one)) for one in (broken, crashed))
    with pytest.raises(KafkaError) as caught:
        opened(broken, failed)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert offsets(opened(crashed, found)) == list(range(COUNT))


def test_a_workers_reports_are_made_when_the_log_opens(crashed: Path, workers: Workers) -> None:
    found = workers.run(recover_log, RealDisk(), to_recover(crashed))
    reports: list[str] = []
    open_log(crashed, config=CONFIG, recovered=found, report=reports.append)
    assert any("160 bytes after offset 95" in report for report in reports)


def test_workers_recover_large_logs_with_the_largest_first() -> None:
    sizes = [LARGE_BYTES - 1, LARGE_BYTES, 0, 3 * LARGE_BYTES]
    logs = {("t", index): LogToRecover("", CONFIG, 0, 0, 0, size) for index, size in enumerate(sizes)}
    assert [index for (_, index), _ in worth_a_worker(logs)] == [3, 1]
