"""`kbroker verify`: every class of damage has its own message."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Verify
from tests.cli.directories import FIRST, TOPIC, findings, flip, logs, partition, starts
from wire.record_batch import Record, RecordBatch, build_batch


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("meta.properties", "is missing: the next start would treat the directory as new"),
        ("recovery-point-offset-checkpoint", "is missing, although the shutdown was clean"),
        ("replication-offset-checkpoint", "is missing, although the shutdown was clean"),
        ("log-start-offset-checkpoint", "is missing, although the shutdown was clean"),
        (f"{TOPIC}-0/{FIRST}.log", "is an index without a log"),
        (f"{TOPIC}-0/{FIRST}.index", "is missing"),
        (f"{TOPIC}-0/{FIRST}.timeindex", "is missing"),
        (f"{TOPIC}-0/leader-epoch-checkpoint", "is missing, though there are batches"),
        (f"{TOPIC}-0/partition.metadata", "is missing"),
        (f"{TOPIC}-1", "is missing: this node has a replica in the metadata"),
        ("__cluster_metadata-0/quorum-state", "is missing: a start would reuse an old epoch"),
    ],
)
def test_a_deleted_file_is_a_finding(verify: Verify, stopped: Path, name: str, reason: str) -> None:
    path = stopped / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    done = verify(stopped)
    assert done.code == 3
    assert reason in done.out


def test_a_segment_that_was_deleted_leaves_a_gap(verify: Verify, stopped: Path) -> None:
    second, third = logs(stopped)[1:3]
    for path in partition(stopped).glob(f"{second.stem}*"):
        path.unlink()
    done = verify(stopped)
    assert done.code == 3
    missing = f"the offsets {int(second.stem)} to {int(third.stem) - 1} are missing before it"
    assert f"{third}: {missing}" in done.lines


def test_checkpoints_reveal_that_the_last_segment_was_deleted(verify: Verify, stopped: Path) -> None:
    last = logs(stopped)[-1]
    for path in partition(stopped).glob(f"{last.stem}*"):
        path.unlink()
    done = verify(stopped)
    assert done.code == 3
    assert f"for {TOPIC}-0, whose log is 0 to {int(last.stem)}" in done.out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("notes.txt", "is not a file of a broker"),
        ("orders", "is not a file of a broker"),
        (f"{TOPIC}-0/core", "is not a file of a broker"),
        (f"{TOPIC}-0/123.log", "is not a file of a broker"),
        (f"{TOPIC}-0/00000000000000000003.index", "is an index without a log"),
        (f"{TOPIC}-0/00000000000000000003.snapshot", "producer snapshot of 0 bytes is cut short"),
        ("__cluster_metadata-0/junk", "is not a file of a broker"),
        ("__cluster_metadata-0/00000000000000000003-0000000001.checkpoint", "has no footer"),
    ],
)
def test_foreign_files_are_found(verify: Verify, stopped: Path, name: str, reason: str) -> None:
    (stopped / name).touch()
    done = verify(stopped)
    assert done.code == 3
    assert any(line.startswith(f"{stopped / name}: ") and reason in line for line in done.lines), done.out


def test_a_tier_inside_the_directory_is_not_a_foreign_file(verify: Verify, stopped: Path) -> None:
    before = verify(stopped)
    (stopped / "tier" / "orders-kS2mDpo7RkS0cUkCAYyBDA" / "0").mkdir(parents=True)
    (stopped / "remote-log-index-cache").mkdir()
    assert verify(stopped) == before
    assert before.code == 0


def test_a_partition_missing_from_the_metadata_is_found(verify: Verify, stopped: Path) -> None:
    shutil.copytree(partition(stopped), stopped / "stranger-0")
    done = verify(stopped)
    assert done.code == 3
    assert f"{stopped}/stranger-0: is not a partition of this node in the metadata" in done.lines


def test_a_partition_with_another_topic_id_is_found(verify: Verify, stopped: Path) -> None:
    (partition(stopped) / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    done = verify(stopped)
    assert done.code == 3
    assert f"{partition(stopped)}: has the topic id AAAAAAAAAAAAAAAAAAAAAQ, but that of {TOPIC} is " in done.out


@pytest.mark.parametrize("name", ["gone-0.0123456789abcdef0123456789abcdef-delete", f"{TOPIC}-0/{FIRST}.log.deleted"])
def test_leftovers_that_the_next_start_removes_are_notes(verify: Verify, stopped: Path, name: str) -> None:
    path = stopped / name
    if name.endswith("-delete"):
        path.mkdir()
    else:
        path.touch()
    done = verify(stopped)
    assert done.code == 0
    assert f"{path}: note: is a leftover of an interrupted change" in done.out


def test_a_stray_directory_is_a_note(verify: Verify, stopped: Path) -> None:
    path = stopped / f"{TOPIC}-7.0123456789abcdef0123456789abcdef-stray"
    shutil.copytree(partition(stopped), path)
    done = verify(stopped)
    assert done.code == 0
    assert f"{path}: note: is a stray" in done.out


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("meta.properties", "version=7\n", "cannot be read: version 7, expected 1"),
        ("meta.properties", "", "cannot be read: no version"),
        ("recovery-point-offset-checkpoint", "1\n0\n", "cannot be read: version '1', expected 0"),
        ("replication-offset-checkpoint", f"0\n1\n{TOPIC} 0 99999\n", f"has 99999 for {TOPIC}-0, whose log is 0 to "),
        ("log-start-offset-checkpoint", f"0\n1\n{TOPIC} 0 -5\n", f"has -5 for {TOPIC}-0"),
        ("log-start-offset-checkpoint", "0\n1\nnobody 0\n", "cannot be read: "),
        (f"{TOPIC}-0/leader-epoch-checkpoint", "0\n1\n0 0\n", ", but leader-epoch-checkpoint has 0"),
        (f"{TOPIC}-0/leader-epoch-checkpoint", "0\n2\n3 0\n1 9\n", "cannot be read: entry 1 9 does not follow 3 0"),
        (f"{TOPIC}-0/leader-epoch-checkpoint", "x", "cannot be read: version 'x', expected 0"),
        (f"{TOPIC}-0/partition.metadata", "version: 1\n", "cannot be read: version 1, expected 0"),
        ("__cluster_metadata-0/quorum-state", "{}", "cannot be read"),
    ],
)
def test_small_files_with_impossible_contents_are_found(
    verify: Verify, stopped: Path, name: str, text: str, reason: str
) -> None:
    (stopped / name).write_text(text)
    done = verify(stopped)
    assert done.code == 3
    assert any(line.startswith(f"{stopped / name}: ") or "-0/" in name for line in done.lines)
    assert reason in done.out


def test_a_checkpoint_without_one_of_the_partitions_is_found(verify: Verify, stopped: Path) -> None:
    path = stopped / "recovery-point-offset-checkpoint"
    lines = [line for line in path.read_text().splitlines()[2:] if not line.startswith(f"{TOPIC} 1 ")]
    path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
    done = verify(stopped)
    assert (done.code, findings(done)) == (3, [f"{path}: has no entry for {TOPIC}-1"])


def write_batches(path: Path, *batches: bytes) -> None:
    """Append batches to a log."""
    with path.open("ab") as file:
        file.write(b"".join(batches))


def next_offset(path: Path) -> int:
    data = path.read_bytes()
    return RecordBatch(data, starts(path)[-1]).last_offset + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"record_count": 9}, "has 9 records for 1 offsets"),
        ({"last_offset_delta": 4}, "has 1 records for 5 offsets"),
        ({"record_count": 2, "last_offset_delta": 1}, "cannot be read: "),
        ({"partition_leader_epoch": 0}, "has leader epoch 0, after one of "),
        ({"base_offset": 5}, "is before the segment's first offset"),
        ({"base_offset": 9_000}, "the offsets between are missing"),
        ({"base_offset": 1 << 40}, "after the segment's first offset"),
        ({"is_control": True}, "cannot be read: a control record has no type"),
    ],
)
def test_batches_with_a_right_crc_and_wrong_contents_are_found(
    verify: Verify, stopped: Path, fields: dict[str, int], reason: str
) -> None:
    path = logs(stopped)[-1]
    position = path.stat().st_size
    epoch = RecordBatch(path.read_bytes(), starts(path)[-1]).partition_leader_epoch
    given: dict[str, object] = {"base_offset": next_offset(path), "partition_leader_epoch": epoch, **fields}
    write_batches(path, build_batch([Record(-1, 1, None, b"v")], **given))  # type: ignore[arg-type]
    done = verify(stopped)
    assert done.code == 3
    assert any(line.startswith(f"{path}: at byte {position}: ") and reason in line for line in done.lines), done.out


def test_entries_of_indexes_that_point_nowhere_are_found(verify: Verify, stopped: Path) -> None:
    path = logs(stopped)[0].with_suffix(".index")
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    entries[2] = (entries[2][0], entries[2][1] + 1)
    entries[3] = (entries[3][0] - 1, entries[3][1])
    entries[5] = entries[4]
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    done = verify(stopped)
    assert done.code == 3
    assert [line.partition(": at byte ")[2].split(":")[0] for line in findings(done)] == ["40", "24", "16"]
    assert f"entry 2 has offset {entries[2][0]} at position {entries[2][1]}, but no batch begins there" in done.out


def test_a_torn_end_after_a_kill_is_a_note(verify: Verify, killed: Path) -> None:
    path = logs(killed)[-1]
    size = path.stat().st_size
    write_batches(path, build_batch([Record(-1, 1, None, b"v")], base_offset=next_offset(path))[:-3])
    done = verify(killed)
    assert done.code == 0
    assert f"{path}: note: no whole batch follows offset {next_offset_at(path, size)} at byte {size}: " in done.out


def next_offset_at(path: Path, size: int) -> int:
    data = path.read_bytes()[:size]
    return max(RecordBatch(data, at).last_offset for at in starts_of(data)) + 1


def starts_of(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        yield position
        position += RecordBatch(data, position).size


def test_a_torn_end_after_a_clean_shutdown_is_a_finding(verify: Verify, stopped: Path) -> None:
    path = logs(stopped)[-1]
    position = path.stat().st_size
    write_batches(path, b"\x00" * 100)
    done = verify(stopped)
    assert done.code == 3
    assert findings(done)[0].startswith(f"{path}: at byte {position}: 100 bytes of zeros")


def test_unrepairable_damage_is_a_finding_even_after_a_kill(verify: Verify, killed: Path) -> None:
    path = logs(killed)[0]
    flip(path, starts(path)[1] + 80)
    done = verify(killed)
    assert done.code == 3
    assert f"{path}: at byte {starts(path)[1]}: the batch at offset " in done.out


def test_partitions_are_checked_even_if_the_metadata_are_damaged(verify: Verify, stopped: Path) -> None:
    directory = stopped / "__cluster_metadata-0"
    last = [path for path in sorted(directory.glob("*.log")) if path.stat().st_size][-1]
    flip(last, 80)
    path = logs(stopped)[0]
    flip(path, starts(path)[1] + 80)
    done = verify(stopped)
    assert done.code == 3
    assert any(line.startswith(f"{last}: at byte 0: ") for line in done.lines)
    assert any(line.startswith(f"{path}: at byte ") for line in done.lines)
    assert "note: cannot be replayed, so partitions are not compared with it" in done.out


def test_a_damaged_snapshot_of_the_metadata_is_found(verify: Verify, stopped: Path) -> None:
    path = sorted((stopped / "__cluster_metadata-0").glob("*.checkpoint"))[-1]
    flip(path, 90)
    done = verify(stopped)
    assert done.code == 3
    assert any(line.startswith(f"{path}: ") for line in findings(done))


def test_a_directory_without_metadata_is_checked_by_itself(verify: Verify, stopped: Path) -> None:
    shutil.rmtree(stopped / "__cluster_metadata-0")
    done = verify(stopped)
    assert done.code == 0
    assert "note: is missing, so partitions cannot be compared with the metadata" in done.out


def test_findings_of_one_file_are_limited(verify: Verify, stopped: Path) -> None:
    path = logs(stopped)[0]
    for position in starts(path):
        flip(path, position + 90)
    done = verify(stopped)
    assert done.code == 3
    assert len(findings(done)) == 20
    assert findings(done)[-1].endswith("(further findings in this file are only counted)")
    assert int(done.err.split()[2]) == len(starts(path))
