"""Disk failures: rows D8, D9 and D13 of the fault list."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.storage.doomed import Doomed
from kbroker.storage.files import FilePool
from kbroker.storage.leader_epoch import parse_epochs
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.plans import DirectoryState
from tests.storage.logs import FailingDisk, batch, fill, offsets, open_log
from tests.storage.test_log import SMALL
from wire.errors import ErrorCode, KafkaError


def refused(log: Log) -> KafkaError:
    with pytest.raises(KafkaError) as raised:
        fill(log, 1)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return raised.value


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_d9_a_short_write_is_undone_and_appends_continue_with_space(tmp_path: Path, error: int) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 5)
    path = tmp_path / f"{0:020d}.log"
    before = path.read_bytes()
    for _ in range(3):
        disk.fail("pwrite", error=error)
        failure = refused(log)
        assert isinstance(failure.__cause__ or failure.__context__, OSError)
        assert path.read_bytes() == before
        assert log.log_end_offset == 5
    fill(log, 5)
    assert offsets(log) == list(range(10))
    assert log.state.failure is None


def test_d9_a_failed_append_does_not_change_the_producer_state(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    sent = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    disk.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.append(bytearray(sent), leader_epoch=0, timestamp_ms=0)
    assert not log.append(bytearray(sent), leader_epoch=0, timestamp_ms=0).is_duplicate


def test_d9_a_write_error_takes_the_directory_offline(tmp_path: Path) -> None:
    failures: list[OSError] = []
    disk = FailingDisk()
    state = DirectoryState(failures.append)
    log = open_log(tmp_path, disk=disk, state=state)
    (tmp_path / "other").mkdir()
    other = open_log(tmp_path / "other", disk=disk, state=state)
    fill(log, 5)
    disk.fail("pwrite")
    refused(log)
    disk.done.clear()
    refused(log)
    refused(other)
    assert disk.done == [], "an offline directory is not written to"
    assert [failure.errno for failure in failures] == [errno.EIO]
    assert log.read(0, max_bytes=1 << 20).size > 0, "reads continue"


def test_d9_a_failed_truncation_takes_the_directory_offline(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 5)
    plan = log.plan_append(batch(), leader_epoch=0, timestamp_ms=0)
    note = disk.note

    def fail_both(kind: str, path: str, before: object = lambda: None) -> None:
        if kind in ("pwrite", "truncate"):
            raise OSError(errno.ENOSPC, "no space")
        note(kind, path)

    disk.note = fail_both  # type: ignore[method-assign, assignment]
    with pytest.raises(KafkaError):
        log.write(plan)
    assert log.state.failure is not None


@pytest.mark.parametrize("how", ["flush", "append", "roll", "close"])
def test_d8_a_failed_fsync_takes_the_directory_offline_without_a_retry(tmp_path: Path, how: str) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(flush_messages=1 if how == "append" else 1 << 60))
    if how != "append":
        fill(log, 5)
    if how == "roll":
        log.flush()
    end = log.log_end_offset
    disk.fail("sync")
    steps = {
        "flush": log.flush,
        "append": lambda: fill(log, 1),
        "roll": lambda: log.roll(timestamp_ms=0),
        "close": log.close,
    }
    with pytest.raises(KafkaError) as raised:
        steps[how]()
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == end, "unsynced data is not acknowledged"
    assert log.state.failure is not None
    disk.done.clear()
    for again in (log.flush, lambda: fill(log, 1)):
        with pytest.raises(KafkaError):
            again()
    log.close()
    assert not any(line.startswith("sync") for line in disk.done)


def test_d8_a_failed_fsync_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=SMALL)
    fill(log, 50)
    disk.fail("sync", nth=3)
    with pytest.raises(KafkaError):
        log.flush()
    assert log.recovery_point == 0


def test_flush_messages_1_syncs_every_append_before_the_commit(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(segment_bytes=1_000, flush_messages=1))
    for number in range(20):
        disk.done.clear()
        plan = log.plan_append(batch(), leader_epoch=0, timestamp_ms=0)
        assert plan.syncs
        log.write(plan)
        assert log.recovery_point == number
        base = plan.first_offset if plan.rolls else log.segments.active.base_offset
        assert f"sync {base:020d}.log" in disk.done
        if plan.rolls or number == 0:
            assert f"sync_directory {tmp_path.name}" in disk.done, "a new segment's name is durable too"
        log.commit(plan)
        assert log.recovery_point == number + 1


def test_a_flush_syncs_closed_segments_and_indexes_only_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=SMALL)
    fill(log, 60)
    disk.done.clear()
    log.flush()
    synced = [line for line in disk.done if line.startswith("sync ")]
    assert synced == [
        "sync leader-epoch-checkpoint.tmp",
        *(f"sync {base:020d}{suffix}" for base in (0, 23) for suffix in (".log", ".index", ".timeindex")),
        f"sync {46:020d}.log",
    ]
    assert log.recovery_point == 60
    disk.done.clear()
    log.flush()
    assert disk.done == []


def test_a_flush_below_the_active_segment_does_not_sync_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=SMALL)
    fill(log, 60)
    disk.done.clear()
    plan = log.plan_flush(below_active=True)
    assert plan is not None
    log.write_flush(plan)
    log.commit_flush(plan)
    assert log.recovery_point == 46
    assert f"sync {46:020d}.log" not in disk.done
    assert log.plan_flush(below_active=True) is None


def test_a_truncation_invalidates_a_running_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 60)
    plan = log.plan_flush()
    assert plan is not None
    log.truncate_to(30)
    fill(log, 60)
    log.write_flush(plan)
    log.commit_flush(plan)
    assert log.recovery_point == 0


def test_the_next_flush_covers_batches_appended_during_a_flush(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 10)
    plan = log.plan_flush()
    assert plan is not None
    fill(log, 10)
    log.write_flush(plan)
    fill(log, 10)
    log.commit_flush(plan)
    assert log.recovery_point == 10
    disk.done.clear()
    log.flush()
    assert log.recovery_point == 30
    assert f"sync {0:020d}.log" in disk.done


def test_d13_the_pool_evicts_files_and_retries_without_descriptors(tmp_path: Path) -> None:
    disk = FailingDisk()
    files = FilePool(disk, 100)
    logs = []
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        logs.append(open_log(tmp_path / str(number), disk=disk, pool=files))
    held = len(files)
    disk.fail("open", error=errno.EMFILE)
    (tmp_path / "more").mkdir()
    more = open_log(tmp_path / "more", disk=disk, pool=files)
    assert len(files) < held
    for log in (*logs, more):
        fill(log, 3)
        assert offsets(log) == [0, 1, 2]


def test_d13_a_lack_of_descriptors_does_not_fail_the_disk(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 5)
    log.close()
    state = DirectoryState()
    disk.fail("open", times=5, error=errno.EMFILE)
    with pytest.raises(KafkaError):
        open_log(tmp_path, disk=disk, state=state)
    disk.fail("")
    assert state.failure is None
    assert open_log(tmp_path, disk=disk, state=state).log_end_offset == 5


def checkpoint(directory: Path) -> list[tuple[int, int]]:
    return parse_epochs((directory / "leader-epoch-checkpoint").read_text())


def test_a_close_writes_the_epochs_of_an_abandoned_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    log.flush()
    fill(log, 1, leader_epoch=7)
    plan = log.plan_flush()
    assert plan is not None
    assert plan.writes_epochs
    log.close()
    assert checkpoint(tmp_path) == [(0, 0), (7, 3)]


def test_an_epoch_without_batches_is_not_written_but_replaced(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    log.flush()
    log.assign_epoch(7)
    log.close()
    assert checkpoint(tmp_path) == [(0, 0)]
    log = open_log(tmp_path, clean_shutdown=True)
    fill(log, 1, leader_epoch=8)
    log.flush()
    assert checkpoint(tmp_path) == log.leader_epochs.entries == [(0, 0), (8, 3)]


def test_a_flush_does_not_write_epochs_truncated_since_its_plan(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    fill(log, 3, leader_epoch=5)
    plan = log.plan_flush()
    assert plan is not None
    log.truncate_to(2)
    assert plan.writes_epochs
    log.write_epochs()
    log.write_flush(plan)
    log.commit_flush(plan)
    assert checkpoint(tmp_path) == log.leader_epochs.entries == [(0, 0)]


def test_an_empty_log_is_flushed_and_closed_without_disk_operations(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    log.assign_epoch(3)
    disk.done.clear()
    assert log.plan_flush() is None
    log.flush()
    log.close()
    assert disk.done == []
    assert open_log(tmp_path, clean_shutdown=True).log_end_offset == 0


def test_a_close_syncs_the_directory_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 3)
    disk.done.clear()
    log.close()
    assert [line for line in disk.done if line.startswith("sync_directory")] == [f"sync_directory {tmp_path.name}"]
    assert disk.done[-1] == f"sync_directory {tmp_path.name}"
    assert "rename leader-epoch-checkpoint" in disk.done
    assert f"rename {3:020d}.snapshot" in disk.done


def test_the_next_flush_writes_an_epoch_assigned_during_a_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    plan = log.plan_flush()
    assert plan is not None
    log.write_epochs()
    fill(log, 1, leader_epoch=7)
    log.write_flush(plan)
    log.commit_flush(plan)
    assert checkpoint(tmp_path) == [(0, 0)]
    log.flush()
    assert checkpoint(tmp_path) == [(0, 0), (7, 3)]


def test_a_close_writes_an_epoch_assigned_during_a_synced_append(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(flush_messages=1))
    plan = log.plan_append(batch(), leader_epoch=4, timestamp_ms=0)
    log.write(plan)
    log.commit(plan)
    assert not log.leader_epochs.needs_writing(log.log_end_offset)
    plan = log.plan_append(batch(), leader_epoch=5, timestamp_ms=0)
    log.write(plan)
    log.assign_epoch(6)
    log.commit(plan)
    log.close()
    assert checkpoint(tmp_path) == log.leader_epochs.entries == [(4, 0), (6, 1)]


def test_d8_a_failed_checkpoint_write_is_retried(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 3)
    disk.fail("rename", error=errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.flush()
    log.flush()
    assert checkpoint(tmp_path) == [(0, 0)]


def test_a_failed_removal_is_retried_and_does_not_block_others(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(segment_bytes=4_000, retention_bytes=0))
    fill(log, 60)
    log.apply_retention(log.plan_retention(high_watermark=60, timestamp_ms=0), now_ms=0, timestamp_ms=0)
    count = len(log.files.doomed)
    disk.fail("unlink", nth=2, error=errno.EACCES)
    with pytest.raises(KafkaError):
        log.unlink_doomed(1 << 40)
    assert len([*tmp_path.glob("*.deleted")]) == 1
    assert log.unlink_doomed(1 << 40) == 1
    assert count > 2
    assert not [*tmp_path.glob("*.deleted")]


def test_a_name_added_during_a_removal_is_removed_later() -> None:
    doomed, removed = Doomed([(0, "a"), (9, "later"), (0, "b")]), list[str]()

    def remove(name: str) -> None:
        removed.append(name)
        doomed.add(0, f"{name}-too")

    assert doomed.remove_due(5, remove) == 2
    assert (removed, len(doomed)) == (["a", "b"], 3)
    assert doomed.remove_due(9, removed.append) == 3
    assert sorted(removed) == ["a", "a-too", "b", "b-too", "later"]


def test_the_next_flush_syncs_indexes_finished_during_a_flush(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(index_interval_bytes=500))
    fill(log, 20)
    flush = log.plan_flush()
    assert flush is not None
    fill(log, 20)
    log.reconfigure(LogConfig(index_interval_bytes=500, segment_bytes=4_000))
    append = log.plan_append(batch(), leader_epoch=0, timestamp_ms=0)
    assert append.rolls
    log.write(append)
    log.write_flush(flush)
    log.commit(append)
    log.commit_flush(flush)
    disk.done.clear()
    log.flush()
    assert f"sync {0:020d}.index" in disk.done
    assert f"sync {0:020d}.timeindex" in disk.done


class ForgetfulDisk(RealDisk):
    """A disk on which every index ends too early, even a new one."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        if not path.endswith("index"):
            return file
        short = ShortFile(path, os.dup(file.fileno()))
        file.close()
        return short


class ShortFile(RealFile):
    def pread(self, size: int, position: int) -> bytes:
        return super().pread(max(size - 3, 0), position)


def test_d4_reads_work_without_an_index_that_cannot_be_rebuilt(tmp_path: Path) -> None:
    log = open_log(tmp_path, disk=ForgetfulDisk(), config=SMALL)
    fill(log, 60)
    assert len(log.segments) > 2
    assert offsets(log) == list(range(60))
    found = [log.offset_for_timestamp(1_000 + offset) for offset in range(60)]
    assert [entry and entry[0] for entry in found] == list(range(60))


def test_d4_an_index_deleted_from_an_open_log_is_rebuilt(tmp_path: Path) -> None:
    files = FilePool(RealDisk())
    log = open_log(tmp_path, pool=files, config=SMALL)
    fill(log, 60)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*index")}
    for name in before:
        if log.segments.active.base_offset != int(name.split(".")[0]):
            (tmp_path / name).unlink()
    files.forget_directory(str(tmp_path))
    assert offsets(log) == list(range(60))
    found = [log.offset_for_timestamp(1_000 + offset) for offset in range(60)]
    assert [entry and entry[0] for entry in found] == list(range(60))
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*index")} == before


def test_a_tiny_log_closes_with_data_and_names_synced_only(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk=disk)
    fill(log, 3, leader_epoch=4)
    log.append(
        batch(producer_id=7, producer_epoch=0, base_sequence=0, timestamp=9_000), leader_epoch=5, timestamp_ms=9_000
    )
    disk.done.clear()
    log.close()
    assert [line for line in disk.done if line.startswith("sync")] == [
        f"sync {0:020d}.log",
        f"sync_directory {tmp_path.name}",
    ]
    for path in (*tmp_path.glob("*index"), *tmp_path.glob("*.snapshot"), *tmp_path.glob("*-checkpoint")):
        path.write_bytes(b"")  # a file that was not synced may be empty after a loss of power
    log = open_log(tmp_path, clean_shutdown=True)
    assert log.leader_epochs.entries == [(4, 0), (5, 3)]
    assert 7 in log.producers.producers
    assert log.offset_for_timestamp(8_000) == (3, 9_000, 5)
