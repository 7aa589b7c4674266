"""Recovery after crashes: rows D1 to D6 and D13 of the fault list."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from tests.storage.logs import FailingDisk, append_as_follower, batch, fill, offsets, open_log, read_all
from tests.storage.test_log import SMALL, names
from wire.errors import KafkaError
from wire.record_batch import RecordBatch

COUNT = 100


def crash(log: Log) -> None:
    """Drop a log as a crash of the process does: only completed writes remain."""
    log.files.pool.close()


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """An unclosed log of 100 single-record batches by one producer in several segments; epoch 2 starts at 50."""
    log = open_log(tmp_path, config=SMALL)
    for number in range(COUNT):
        sent = batch(timestamp=1_000 + number, producer_id=1, producer_epoch=0, base_sequence=number)
        log.append(sent, leader_epoch=1 + number // 50, timestamp_ms=0)
    crash(log)
    return tmp_path


def last_log(directory: Path) -> Path:
    return directory / f"{names(directory, '.log')[-1]:020d}.log"


def check(directory: Path, count: int, *, report_count: int | None = None) -> Log:
    """Recover twice and check that the log holds exactly the first `count` records both times."""
    reports: list[str] = []
    for _ in range(2):
        log = open_log(directory, config=SMALL, report=reports.append)
        assert log.log_end_offset == count
        assert offsets(log) == list(range(count))
        assert log.leader_epochs.entries == [(1, 0), (2, 50)][: 1 + (count > 50)]
        assert log.producers.producers[1].last_sequence == count - 1
        for number in range(0, count, 9):
            assert log.offset_for_timestamp(1_000 + number) == (number, 1_000 + number, 1 + number // 50)
        latest = log.max_timestamp()
        assert latest is not None
        assert latest[0] == count - 1
        assert all(segment.size for segment in list(log.segments)[:-1]), "an empty segment in the middle"
        crash(log)
    if report_count is not None:
        assert len(reports) == report_count, reports
    return open_log(directory, config=SMALL)


def test_d1_completed_writes_survive_a_crash_of_the_process(crashed: Path) -> None:
    log = check(crashed, COUNT, report_count=0)
    fill(log, 5, leader_epoch=2)
    assert offsets(log) == list(range(COUNT + 5))


@pytest.mark.parametrize("kept", [1, 11, 12, 60, 61, 62, 100, 170])
def test_d1_a_torn_batch_is_truncated(crashed: Path, kept: int) -> None:
    path = last_log(crashed)
    size = path.stat().st_size
    batch_size = len(read_all(open_log(crashed, config=SMALL))[-1].data)
    os.truncate(path, size - batch_size + kept)
    check(crashed, COUNT - 1, report_count=1)
    assert path.stat().st_size == size - batch_size


@pytest.mark.parametrize("position", [16, 17, 25, 40, 61, 150])
def test_d1_a_tail_with_a_wrong_crc_is_truncated(crashed: Path, position: int) -> None:
    path = last_log(crashed)
    data = bytearray(path.read_bytes())
    batch_size = len(read_all(open_log(crashed, config=SMALL))[-1].data)
    data[len(data) - batch_size + position] ^= 0x40
    path.write_bytes(data)
    check(crashed, COUNT - 1, report_count=1)


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 500, b"\xff" * 500, b"garbage" * 40])
def test_d1_garbage_after_the_last_batch_is_truncated(crashed: Path, garbage: bytes) -> None:
    with last_log(crashed).open("ab") as file:
        file.write(garbage)
    check(crashed, COUNT, report_count=1)


def test_d1_an_old_batch_after_a_newer_one_is_truncated(crashed: Path) -> None:
    # Offsets must ascend: an old batch that reappears after a newer one is not part of the log.
    path = last_log(crashed)
    data = path.read_bytes()
    path.write_bytes(data + data)
    check(crashed, COUNT, report_count=1)


def test_d1_damage_in_a_middle_segment_removes_everything_after_it(crashed: Path) -> None:
    second = names(crashed, ".log")[1]
    path = crashed / f"{second:020d}.log"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    log = check(crashed, second + 2)
    assert names(crashed, ".log") == [0, second]
    assert all(snapshot <= second + 2 for snapshot in names(crashed, ".snapshot"))
    assert log.append(batch(), leader_epoch=2, timestamp_ms=0).first_offset == second + 2


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_d1_damage_of_the_first_batch_after_a_clean_shutdown_is_truncated(tmp_path: Path, damage: str) -> None:
    """Only something else than the broker can do this."""
    log = open_log(tmp_path)
    fill(log, 3)
    log.close()
    path = Path(log.segments.active.log_path)
    data = path.read_bytes()
    path.write_bytes(data[:30] if damage == "cut" else bytes(70) + data[70:])
    reports: list[str] = []
    log = open_log(tmp_path, clean_shutdown=True, report=reports.append)
    assert "the segment is recovered" in reports[0]
    assert (log.log_end_offset, log.segments.active.size) == (0, 0)
    fill(log, 2)
    assert offsets(log) == [0, 1]


def test_d7_a_segment_that_lost_its_end_removes_later_segments(crashed: Path) -> None:
    # Truncated at a batch boundary: all remaining batches are valid, and only the offsets show the gap.
    second = names(crashed, ".log")[1]
    path = crashed / f"{second:020d}.log"
    batch_size = path.stat().st_size // (names(crashed, ".log")[2] - second)
    os.truncate(path, batch_size * 3)
    check(crashed, second + 3, report_count=1)


def test_d7_an_empty_middle_segment_removes_later_segments(crashed: Path) -> None:
    second = names(crashed, ".log")[1]
    os.truncate(crashed / f"{second:020d}.log", 0)
    check(crashed, second, report_count=1)


def test_gaps_in_a_compacted_log_are_legal(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log = open_log(tmp_path, config=config)
    append_as_follower(log, batch(base_offset=0))
    log.roll(timestamp_ms=0)
    append_as_follower(log, batch(base_offset=7))
    log.roll(timestamp_ms=0)
    append_as_follower(log, batch(base_offset=20))
    crash(log)
    (tmp_path / f"{1:020d}.log").rename(tmp_path / f"{4:020d}.log")
    log = open_log(tmp_path, config=config)
    assert log.log_end_offset == 21
    assert [one.base_offset for one in read_all(log)] == [0, 7, 20]


def test_d1_recovery_reads_only_data_after_the_recovery_point(crashed: Path) -> None:
    (crashed / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n2 50\n")
    bases = names(crashed, ".log")
    disk = FailingDisk()
    log = open_log(crashed, disk=disk, config=SMALL, recovery_point=bases[-2] + 1)
    read = {int(line.split()[1][:20]) for line in disk.done if line.startswith("pread") and line.endswith(".log")}
    # In the segment before, only the last header is read, to check the epochs against the batches.
    assert set(bases[-2:]) <= read <= set(bases[-3:])
    assert disk.done.count(f"pread {bases[-3]:020d}.log") < 6
    assert log.log_end_offset == COUNT
    assert (log.recovery_point, log.persisted_recovery_point) == (bases[-2], bases[-2] + 1)


def test_d1_an_unclean_shutdown_of_an_empty_log_loses_nothing(tmp_path: Path) -> None:
    crash(open_log(tmp_path))
    log = open_log(tmp_path)
    assert log.log_end_offset == 0
    assert log.append(batch(), leader_epoch=0, timestamp_ms=0).first_offset == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "garbage", "zeros", "shifted"])
@pytest.mark.parametrize("clean", [True, False])
def test_d2_a_damaged_index_is_rebuilt(crashed: Path, suffix: str, damage: str, clean: bool) -> None:
    open_log(crashed, config=SMALL).close()
    good = {path.name: path.read_bytes() for path in crashed.glob(f"*{suffix}")}
    for path in crashed.glob(f"*{suffix}"):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif data:
            path.write_bytes(
                {
                    "cut": data[:-3],
                    "empty": b"",
                    "garbage": bytes(byte ^ 0x5A for byte in data),
                    "zeros": bytes(len(data)),
                    "shifted": b"".join(
                        entry[:-1] + bytes([entry[-1] + 1])
                        for entry in (data[at : at + len(data) // 2] for at in (0, len(data) // 2))
                    ),
                }[damage]
            )
    log = open_log(crashed, config=SMALL, clean_shutdown=clean, recovery_point=COUNT)
    for number in range(COUNT):
        assert log.offset_for_timestamp(1_000 + number) == (number, 1_000 + number, 1 + number // 50)
    assert offsets(log) == list(range(COUNT))
    assert [read_all_from(log, offset) for offset in range(COUNT)] == list(range(COUNT))
    latest = log.max_timestamp()
    assert latest is not None
    assert latest[0] == COUNT - 1
    log.close()
    if damage in ("missing", "cut", "garbage"):
        assert {path.name: path.read_bytes() for path in crashed.glob(f"*{suffix}")} == good


def read_all_from(log: Log, offset: int) -> int:
    from wire.record_batch import RecordBatch

    return RecordBatch(log.read(offset, max_bytes=1).read()).base_offset


def test_d2_an_index_without_a_log_is_removed(crashed: Path) -> None:
    (crashed / f"{5_000:020d}.index").write_bytes(bytes(8))
    (crashed / f"{5_000:020d}.txnindex").write_bytes(b"")
    check(crashed, COUNT)
    assert max(names(crashed, ".index")) < COUNT
    assert names(crashed, ".txnindex") == []


@pytest.mark.parametrize("text", ["", "0\n1\n", "1\n0\n", "0\n2\n1 0\n", "\0\0\0\0", "0\n1\nx y\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_d4_a_malformed_epoch_checkpoint_is_rebuilt_from_the_batches(crashed: Path, text: str, clean: bool) -> None:
    open_log(crashed, config=SMALL).close()
    (crashed / "leader-epoch-checkpoint").write_text(text)
    reports: list[str] = []
    log = open_log(crashed, config=SMALL, clean_shutdown=clean, report=reports.append)
    if text and not clean:
        assert log.leader_epochs.entries == [(1, 0), (2, 50)]
    elif text:
        assert log.leader_epochs.entries == [(1, 0), (2, 50)]
        assert len(reports) == 2
    log.close()


def test_d4_epochs_ahead_of_the_log_are_dropped(crashed: Path) -> None:
    (crashed / "leader-epoch-checkpoint").write_text("0\n3\n1 0\n2 50\n5 400\n")
    check(crashed, COUNT)


@pytest.mark.parametrize("how_many", [1, 2, 99])
@pytest.mark.parametrize("clean", [True, False])
def test_d5_recovery_deletes_corrupt_snapshots_and_uses_older_ones(crashed: Path, how_many: int, clean: bool) -> None:
    open_log(crashed, config=SMALL).close()
    snapshots = names(crashed, ".snapshot")
    assert len(snapshots) > 3
    damaged = snapshots[-how_many:]
    for offset in damaged:
        path = crashed / f"{offset:020d}.snapshot"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    reports: list[str] = []
    log = open_log(crashed, config=SMALL, clean_shutdown=clean, report=reports.append)
    assert len(reports) == len(damaged)
    assert names(crashed, ".snapshot") == [offset for offset in snapshots if offset not in damaged]
    known = log.producers.producers[1]
    assert (known.last_sequence, known.last_offset) == (COUNT - 1, COUNT - 1)
    again = batch(timestamp=1_099, producer_id=1, producer_epoch=0, base_sequence=COUNT - 1)
    assert log.append(again, leader_epoch=2, timestamp_ms=0).is_duplicate


def test_d5_without_snapshots_recovery_still_detects_duplicates(crashed: Path) -> None:
    for path in crashed.glob("*.snapshot"):
        path.unlink()
    log = check(crashed, COUNT)
    for sequence in range(COUNT - 5, COUNT):
        again = batch(timestamp=1_000 + sequence, producer_id=1, producer_epoch=0, base_sequence=sequence)
        plan = log.append(again, leader_epoch=2, timestamp_ms=0)
        assert plan.is_duplicate
        assert plan.first_offset == sequence


def test_d6_a_crash_after_each_step_of_a_roll_loses_nothing(tmp_path: Path) -> None:
    """Each operation of an append that rolls fails on a full disk. Neither a crash there nor continuing loses data."""
    whole = FailingDisk()
    (tmp_path / "whole").mkdir()
    log = open_log(tmp_path / "whole", disk=whole, config=SMALL)
    fill(log, 23)
    whole.done.clear()
    fill(log, 1)
    operations = [line.split()[0] for line in whole.done]
    assert len(names(tmp_path / "whole", ".log")) == 2
    assert len(operations) > 8
    for at, kind in enumerate(operations):
        if kind.startswith("sync"):
            continue  # failed syncs are fatal and have their own test
        directory, copy = tmp_path / str(at), tmp_path / f"{at}-crashed"
        directory.mkdir()
        disk = FailingDisk()
        log = open_log(directory, disk=disk, config=SMALL)
        fill(log, 23)
        disk.fail(kind, nth=operations[: at + 1].count(kind), error=errno.ENOSPC)
        with pytest.raises(KafkaError):
            fill(log, 1)
        assert log.log_end_offset == 23
        shutil.copytree(directory, copy)
        assert offsets(open_log(copy, config=SMALL)) == list(range(23))
        assert log.state.failure is None
        fill(log, 30)
        assert offsets(log) == list(range(53))
        crash(log)
        assert offsets(open_log(directory, config=SMALL)) == list(range(53))


def test_d6_interrupted_file_operations_are_completed_or_undone(crashed: Path) -> None:
    bases = names(crashed, ".log")
    for suffix in (".log", ".index", ".timeindex"):
        (crashed / f"{COUNT * 2:020d}{suffix}.deleted").write_bytes(b"x")
        (crashed / f"{COUNT * 3:020d}{suffix}.cleaned").write_bytes(b"x")
    (crashed / f"{COUNT:020d}.snapshot.tmp").write_bytes(b"x")
    (crashed / "leader-epoch-checkpoint.tmp").write_bytes(b"x")
    check(crashed, COUNT)
    assert names(crashed, ".log") == bases
    assert [path.name for path in crashed.iterdir() if path.suffix in (".deleted", ".cleaned", ".tmp")] == []


def test_d6_a_finished_compaction_replaces_its_segments(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log = open_log(tmp_path, config=config)
    for _ in range(3):
        fill(log, 4)
        log.roll(timestamp_ms=0)
    fill(log, 1)
    log.close()
    merged = batch(base_offset=3, timestamp=1_003) + batch(base_offset=7, timestamp=1_007)
    (tmp_path / f"{0:020d}.log.swap").write_bytes(merged)
    for _ in range(2):
        log = open_log(tmp_path, config=config)
        assert [one.base_offset for one in read_all(log)] == [3, 7, 8, 9, 10, 11, 12]
        assert names(tmp_path, ".log") == [0, 8, 12]
        crash(log)


def test_d6_an_interrupted_split_is_undone(crashed: Path) -> None:
    bases = names(crashed, ".log")
    shutil.copy(crashed / f"{bases[1]:020d}.log", crashed / f"{bases[1]:020d}.log.swap")
    (crashed / f"{bases[1]:020d}.log.cleaned").write_bytes(b"")
    check(crashed, COUNT)
    assert names(crashed, ".log") == bases


def test_d13_a_crash_during_recovery_does_no_harm(crashed: Path, tmp_path: Path) -> None:
    path = last_log(crashed)
    with path.open("ab") as file:
        file.write(b"torn")
    disk = FailingDisk()
    copy = tmp_path / "reference"
    shutil.copytree(crashed, copy, ignore=shutil.ignore_patterns("reference"))
    open_log(copy, disk=disk, config=SMALL)
    operations = [line.split()[0] for line in disk.done]
    for at in range(0, len(operations), 3):
        directory = tmp_path / f"at-{at}"
        shutil.copytree(crashed, directory, ignore=shutil.ignore_patterns("reference", "at-*"))
        dying = FailingDisk()
        dying.fail(operations[at], nth=operations[: at + 1].count(operations[at]), times=10_000)
        with pytest.raises(KafkaError):
            open_log(directory, disk=dying, config=SMALL)
        log = open_log(directory, config=SMALL)
        assert offsets(log) == list(range(COUNT))
        assert log.producers.producers[1].last_sequence == COUNT - 1
        shutil.rmtree(directory)


def test_d6_a_read_during_an_index_rebuild_misses_nothing(tmp_path: Path) -> None:
    disk = BusyDisk()
    log = open_log(tmp_path, disk=disk, config=LogConfig(segment_bytes=3 << 20, index_interval_bytes=4096))
    fill(log, 40, size=100_000)
    closed = log.segments.first
    log.flush()
    (tmp_path / f"{0:020d}.index").write_bytes(b"\x00\x00\x00\x01" * 20)
    log = open_log(tmp_path, disk=disk, config=log.config, clean_shutdown=True)
    found: list[bytes] = []
    # The second piece of the log is read when the new index already has the first.
    disk.read_behind = (closed.log_path, 1 << 20)
    disk.hook = lambda: found.append(log.read(25, max_bytes=1).read())
    first = log.read(2, max_bytes=1).read()
    assert [RecordBatch(data).base_offset for data in (first, *found)] == [2, 25]
    assert offsets(log) == list(range(40))


class BusyDisk(RealDisk):
    """Runs a hook once, when a file is first read at or after a position."""

    def __init__(self) -> None:
        self.read_behind = ("", 0)
        self.hook: Callable[[], None] = lambda: None

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        busy = BusyFile(path, os.dup(file.fileno()))
        busy.disk = self
        return busy


class BusyFile(RealFile):
    disk: BusyDisk

    def pread(self, size: int, position: int) -> bytes:
        path, behind = self.disk.read_behind
        if self.path == path and position >= behind:
            self.disk.read_behind = ("", 0)
            self.disk.hook()
        return super().pread(size, position)


def test_lost_indexes_of_an_empty_segment_are_restored_silently(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    for suffix in (".index", ".timeindex"):
        (tmp_path / f"{0:020d}{suffix}").unlink()
    reports: list[str] = []
    log = open_log(tmp_path, clean_shutdown=True, report=reports.append)
    assert names(tmp_path, ".index") == names(tmp_path, ".timeindex") == [0]
    assert log.files.has_unsynced_names
    assert reports == []
