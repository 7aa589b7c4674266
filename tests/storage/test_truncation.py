from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.storage.log_config import LogConfig
from tests.storage.logs import FailingDisk, append_as_follower, batch, fill, offsets, open_log
from tests.storage.test_log import SMALL, names
from wire.errors import KafkaError


@pytest.mark.parametrize("offset", [0, 1, 17, 24, 25, 50, 73, 98, 99])
def test_truncation_keeps_everything_below_the_offset(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path, config=SMALL)
    for epoch in range(4):
        fill(log, 25, leader_epoch=epoch)
    assert log.truncate_to(offset)
    assert log.log_end_offset == offset
    assert offsets(log) == list(range(offset))
    assert log.leader_epochs.entries == [(epoch, 25 * epoch) for epoch in range(4) if 25 * epoch < offset]
    assert all(snapshot <= offset for snapshot in names(tmp_path, ".snapshot"))
    fill(log, 30, leader_epoch=9)
    assert offsets(log) == list(range(offset + 30))
    log.close()
    assert offsets(open_log(tmp_path, config=SMALL)) == list(range(offset + 30))


def test_truncation_removes_a_batch_that_spans_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        log.append(batch(10), leader_epoch=0, timestamp_ms=0)
    assert log.truncate_to(15)
    assert log.log_end_offset == 10
    assert offsets(log) == [0]


def test_truncating_at_the_end_only_drops_epochs_without_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.assign_epoch(3)
    assert not log.truncate_to(5)
    assert log.leader_epochs.entries == [(0, 0)]
    assert log.log_end_offset == 5


def test_the_indexes_are_truncated_with_the_log(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=300)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    cut, short = open_log(tmp_path / "a", config=config), open_log(tmp_path / "b", config=config)
    fill(cut, 100)
    fill(short, 61)
    cut.truncate_to(61)
    for log in (cut, short):
        fill(log, 20)
        log.close()
    for suffix in (".log", ".index", ".timeindex"):
        name = f"{0:020d}{suffix}"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), suffix


def test_truncation_restores_the_producers_at_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    for number in range(100):
        sent = batch(producer_id=number % 3, producer_epoch=0, base_sequence=number // 3)
        log.append(sent, leader_epoch=0, timestamp_ms=0)
    log.truncate_to(50)
    assert {key: entry.last_sequence for key, entry in log.producers.producers.items()} == {0: 16, 1: 16, 2: 15}
    again = batch(producer_id=2, producer_epoch=0, base_sequence=15)
    assert log.append(again, leader_epoch=0, timestamp_ms=0).is_duplicate
    log.append(batch(producer_id=2, producer_epoch=0, base_sequence=16), leader_epoch=0, timestamp_ms=0)
    assert log.log_end_offset == 51


def test_rolls_sync_data_regrown_below_an_old_recovery_point(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=SMALL)
    fill(log, 100)
    log.flush()
    log.persisted_recovery_point = log.recovery_point
    log.truncate_to(30)
    assert log.recovery_point == 30
    disk.done.clear()
    fill(log, 30)
    # The checkpoint still says 100: after a loss of power recovery would trust unsynced closed segments below that.
    closed = [base for base in names(tmp_path, ".log") if base < log.segments.active.base_offset and base >= 23]
    assert closed
    for base in closed:
        assert f"sync {base:020d}.log" in disk.done
        assert f"sync {base:020d}.index" in disk.done


def test_a_log_can_be_emptied_and_continue_at_another_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 100, leader_epoch=1)
    log.truncate_fully_and_start_at(500, log_start_offset=20)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (20, 500, 500)
    assert log.leader_epochs.entries == []
    assert names(tmp_path, ".log") == [500]
    assert names(tmp_path, ".snapshot") == []
    append_as_follower(log, batch(base_offset=500, partition_leader_epoch=7))
    assert offsets(log) == [500]
    assert not log.truncate_to(600)
    assert log.truncate_to(490)
    assert (log.log_start_offset, log.log_end_offset) == (490, 490)


def test_a_retry_completes_an_interrupted_truncation(tmp_path: Path) -> None:
    """Each operation of a truncation fails once; after a reload a second truncation reaches the same result."""
    reference: list[str] | None = None
    step = 0
    while True:
        step += 1
        directory = tmp_path / str(step)
        directory.mkdir()
        disk = FailingDisk()
        log = open_log(directory, disk=disk, config=SMALL)
        for epoch in range(4):
            fill(log, 25, leader_epoch=epoch)
        disk.done.clear()
        if reference is None:
            log.truncate_to(40)
            reference = list(disk.done)
            continue
        if step - 2 >= len(reference):
            break
        kind = reference[step - 2].split()[0]
        nth = [line.split()[0] for line in reference[: step - 1]].count(kind)
        disk.fail(kind, nth=nth)
        with suppress(KafkaError):
            log.truncate_to(40)
        again = open_log(directory, config=SMALL)
        stored = offsets(again)
        assert stored == list(range(len(stored)))
        assert len(stored) >= 40
        assert all(start < again.log_end_offset for _, start in again.leader_epochs.entries)
        again.truncate_to(40)
        assert offsets(again) == list(range(40))
        assert again.leader_epochs.entries == [(0, 0), (1, 25)]
    assert step > 10


def test_d7_a_start_rereads_data_regrown_below_a_recovery_point(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    fill(log, 30)
    log.flush()
    log.truncate_to(10)
    log.flush()
    fill(log, 25, leader_epoch=1)
    assert log.recovery_point == 10
    log.files.pool.close()  # the process crashes with recovery point 30 in the checkpoint
    log = open_log(tmp_path, recovery_point=30)
    assert log.log_end_offset == 35
    assert log.recovery_point <= 10
    log.flush()
    assert log.recovery_point == 35
