"""`kbroker dump-log` on sound and damaged segments, indexes, snapshots and checkpoints."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.runtime.disk import RealDisk
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerEntry, RememberedBatch, format_snapshot
from tests.cli.conftest import Run
from tests.storage.logs import batch, fill, open_log
from wire.compression import Codec
from wire.record_batch import Record, RecordBatch, build_batch

LOG = "00000000000000000000.log"


def write_log(directory: Path, *batches: bytes | bytearray) -> Path:
    path = directory / LOG
    path.write_bytes(b"".join(bytes(one) for one in batches))
    return path


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several segments with indexes, closed cleanly."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    log = open_log(directory, config=LogConfig(segment_bytes=4_000, index_interval_bytes=400))
    fill(log, 60)
    log.close()
    assert len(list(directory.glob("*.log"))) >= 3
    return directory


def test_a_segment_is_printed_in_the_lines_of_kafkas_tool(run: Run, tmp_path: Path) -> None:
    records = [
        Record(-1, 1_000, b"k", b"v", (("h1", b"x"), ("h\u00e9", None))),
        Record(-1, 1_005, None, None),
    ]
    idempotent = build_batch(
        records, producer_id=7, producer_epoch=2, base_sequence=2**31 - 1, partition_leader_epoch=3
    )
    appended = build_batch([Record(-1, 1, b"", b"\xff")], base_offset=2, log_append_time=2_000, codec=Codec.ZSTD)
    path = write_log(tmp_path, idempotent, appended)
    first, second = RecordBatch(idempotent), RecordBatch(appended)
    done = run("dump-log", "--files", path, "--print-data-log")
    assert done.lines == [
        f"Dumping {path}",
        "Log starting offset: 0",
        (
            "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 2147483647 lastSequence: 0 producerId: 7 "
            "producerEpoch: 2 partitionLeaderEpoch: 3 isTransactional: false isControl: false "
            f"deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1005 size: {first.size} magic: 2 "
            f"compresscodec: none crc: {first.crc} isvalid: true"
        ),
        (
            "| offset: 0 CreateTime: 1000 keySize: 1 valueSize: 1 sequence: 2147483647 headerKeys: [h1,h\u00e9] "
            "key: k payload: v"
        ),
        "| offset: 1 CreateTime: 1005 keySize: -1 valueSize: -1 sequence: 0 headerKeys: []",
        (
            "baseOffset: 2 lastOffset: 2 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
            "partitionLeaderEpoch: -1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
            f"position: {first.size} LogAppendTime: 2000 size: {second.size} magic: 2 compresscodec: zstd "
            f"crc: {second.crc} isvalid: true"
        ),
        "| offset: 2 LogAppendTime: 2000 keySize: 0 valueSize: 1 sequence: -1 headerKeys: [] key:  payload: \ufffd",
    ]
    assert (done.code, done.err) == (0, "")


def test_records_and_their_contents_are_printed_only_with_flags(run: Run, tmp_path: Path) -> None:
    path = write_log(tmp_path, batch(3))
    assert len(run("dump-log", "--files", path).lines) == 3
    deep = run("dump-log", "--files", path, "--deep-iteration")
    assert len(deep.lines) == 6
    assert "payload" not in deep.out
    bare = run("dump-log", "--files", path, "--print-data-log", "--skip-record-metadata")
    assert bare.lines[3:] == [f"| key: key payload: {'v' * 100}"] * 3


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read(run: Run, tmp_path: Path, codec: Codec) -> None:
    path = write_log(tmp_path, batch(5, codec=codec))
    done = run("dump-log", "--files", path, "--print-data-log")
    assert done.out.count(f"payload: {'v' * 100}") == 5
    assert f"compresscodec: {codec.name.lower()} " in done.out


def test_json_is_an_object_a_line_without_loss(run: Run, tmp_path: Path) -> None:
    records = [Record(-1, 5, b"\xff", "\u00fc\n\x1b".encode(), (("h", b"\xfe"),)), Record(-1, 6, None, None)]
    path = write_log(tmp_path, build_batch(records))
    found = [
        json.loads(line) for line in run("dump-log", "--format", "json", "--files", path, "--print-data-log").lines
    ]
    assert [each["kind"] for each in found] == ["file", "log", "batch", "record", "record"]
    assert found[2]["baseOffset"] == 0
    assert found[2]["isValid"] is True
    assert found[3]["key"] == {"base64": "/w=="}
    assert found[3]["value"] == "\u00fc\n\x1b"
    assert found[3]["headers"] == [{"key": "h", "value": {"base64": "/g=="}}]
    assert (found[4]["key"], found[4]["value"]) == (None, None)


def test_files_are_named_by_commas_or_blanks_or_both(run: Run, partition: Path) -> None:
    logs = sorted(partition.glob("*.log"))
    together = run("dump-log", "--files", f"{logs[0]},{logs[1]}", logs[2])
    assert [line for line in together.lines if line.startswith("Dumping")] == [f"Dumping {log}" for log in logs[:3]]
    assert together.out == run("dump-log", "--files", logs[0], "--files", logs[1], "--files", logs[2]).out
    odd = partition / "0,1.log"
    odd.write_bytes(logs[0].read_bytes())
    assert run("dump-log", "--files", odd).lines[0] == f"Dumping {odd}"


def test_indexes_are_printed_and_agree_with_their_logs(run: Run, partition: Path) -> None:
    for path in sorted(partition.glob("*.index")):
        base = int(path.stem)
        done = run("dump-log", "--files", path)
        entries = [
            f"offset: {base + offset} position: {position}"
            for offset, position in struct.iter_unpack(">ii", path.read_bytes())
        ]
        assert done.lines == [f"Dumping {path}", *(entries or [f"{path} is empty."])]
        assert (done.code, done.err) == (0, "")
    for path in sorted(partition.glob("*.timeindex")):
        done = run("dump-log", "--files", path)
        assert done.lines[1:] == [
            f"timestamp: {time} offset: {int(path.stem) + offset}"
            for time, offset in struct.iter_unpack(">qi", path.read_bytes())
        ]
        assert done.lines[1:]
        assert (done.code, done.err) == (0, "")


def test_an_index_can_be_only_verified_or_only_checked(run: Run, partition: Path) -> None:
    for path in (*partition.glob("*.index"), *partition.glob("*.timeindex")):
        if path.stat().st_size:
            assert run("dump-log", "--files", path, "--verify-index-only").lines == [f"Dumping {path}"]
            checked = run("dump-log", "--files", path, "--index-sanity-check")
            assert checked.lines == [f"Dumping {path}", f"{path} passed sanity check."]


def test_preallocated_index_space_is_not_an_entry(run: Run, partition: Path) -> None:
    path = min(partition.glob("*.index"))
    before = run("dump-log", "--files", path)
    path.write_bytes(path.read_bytes() + bytes(800))
    assert run("dump-log", "--files", path) == before
    empty = partition / "00000000000000000000.timeindex"
    empty.write_bytes(bytes(1_200))
    assert run("dump-log", "--files", empty) == (0, f"Dumping {empty}\n", "")


def test_a_wrong_crc_is_reported_and_the_dump_continues(run: Run, tmp_path: Path) -> None:
    parts = [batch(base_offset=number) for number in range(3)]
    parts[1][-1] ^= 1
    path = write_log(tmp_path, *parts)
    done = run("dump-log", "--files", path)
    assert done.code == 1
    assert f"{path}: at byte {len(parts[0])}: the batch at offset 1 has a wrong CRC" in done.err
    assert [line.rpartition(" ")[2] for line in done.lines[2:]] == ["true", "false", "true"]


def test_a_truncated_log_is_dumped_and_then_reported(run: Run, tmp_path: Path) -> None:
    path = write_log(tmp_path, batch(), batch(base_offset=1)[:-7])
    done = run("dump-log", "--files", path, "--deep-iteration")
    rest = len(batch()) - 7
    assert done.code == 1
    assert len([line for line in done.lines if line.startswith("| offset: 0 ")]) == 1
    assert done.lines[-1] == f"Found {rest} invalid bytes at the end of {LOG}"
    assert f"{path}: at byte {len(batch())}: " in done.err


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(500), "500 bytes of zeros"),
        (b"\x01" * 500, "unknown batch format 1|message of format 1"),
        (struct.pack(">qiiB", 0, 5, 0, 2) + bytes(60), "smaller than a header"),
        (struct.pack(">qiiB", 0, 2**31 - 1, 0, 2) + bytes(60), "2147483659 bytes, but only 77 bytes remain"),
        (b"\x00" * 11, "11 bytes of zeros"),
    ],
)
def test_invalid_batch_bytes_end_the_dump_with_a_reason(run: Run, tmp_path: Path, tail: bytes, reason: str) -> None:
    path = write_log(tmp_path, batch(), tail)
    done = run("dump-log", "--files", path)
    assert done.code == 1
    assert any(word in done.err for word in reason.split("|")), done.err
    assert f"at byte {len(batch())}: " in done.err
    assert done.lines[-1] == f"Found {len(tail)} invalid bytes at the end of {LOG}"


def test_unreadable_records_do_not_hide_the_next_batch(run: Run, tmp_path: Path) -> None:
    lying = build_batch([Record(-1, 1, None, b"v")], record_count=9)
    path = write_log(tmp_path, lying, batch(base_offset=9))
    done = run("dump-log", "--files", path, "--print-data-log")
    assert done.code == 1
    assert f"{path}: at byte 0: the records of the batch at offset 0 cannot be read: " in done.err
    assert "| offset: 9 " in done.out


SOUND = b"".join(bytes(batch(2, base_offset=2 * number, codec=Codec(number % 5))) for number in range(6))
FILES = {
    LOG: SOUND,
    "00000000000000000000.index": struct.pack(">iiii", 3, len(batch(2)), 5, 400),
    "00000000000000000000.timeindex": struct.pack(">qiqi", 1_001, 1, 1_001, 3),
    "00000000000000000000.txnindex": struct.pack(">hqqqq", 0, 1, 2, 3, 4) * 2,
    "00000000000000000009.snapshot": format_snapshot([ProducerEntry(1, batches=[RememberedBatch(3, 4, 0, 5)])]),
    "leader-epoch-checkpoint": b"0\n2\n0 0\n1 5\n",
    "recovery-point-offset-checkpoint": b"0\n1\norders 0 5\n",
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FILES)), data=st.data())
def test_no_damage_makes_the_tool_fail_without_a_message(
    run: Run, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    for each, content in FILES.items():
        (tmp_path / each).write_bytes(content)
    damaged = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        if not damaged:
            break
    (tmp_path / name).write_bytes(damaged)
    for flags in (
        ["--print-data-log"],
        ["--index-sanity-check"],
        ["--offsets-decoder"],
        ["--cluster-metadata-decoder"],
    ):
        done = run("dump-log", *flags, "--files", *(tmp_path / each for each in FILES))
        assert done.code in {0, 1}
        assert (done.code == 1) == bool([line for line in done.err.splitlines() if "non-consecutive" not in line])


def test_a_truncated_log_gives_every_whole_batch_before_the_end(run: Run, tmp_path: Path) -> None:
    ends = []
    position = 0
    while position < len(SOUND):
        position += RecordBatch(SOUND, position).size
        ends.append(position)
    for size in range(0, len(SOUND), 7):
        path = write_log(tmp_path, SOUND[:size])
        done = run("dump-log", "--files", path)
        whole = len([end for end in ends if end <= size])
        assert len([line for line in done.lines if line.startswith("baseOffset")]) == whole
        assert done.code == (0 if size in (0, *ends) else 1)


def test_each_wrong_index_entry_is_reported(run: Run, partition: Path) -> None:
    path = min(partition.glob("*.index"))
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    entries[1] = (entries[1][0], entries[1][1] + 1)
    entries[2] = (entries[2][0] + 1, entries[2][1])
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries) + b"odd")
    done = run("dump-log", "--files", path)
    assert done.code == 1
    assert len(done.lines) == 1 + len(entries)
    assert f"{path}: at byte 8: entry 1 " in done.err
    assert f"{path}: at byte 16: entry 2 has offset {entries[2][0]}" in done.err
    assert (
        f"{path}: at byte {8 * len(entries)}: {8 * len(entries) + 3} bytes, not a multiple of the entry size 8"
        in done.err
    )
    assert len(done.err.splitlines()) == 3


def test_each_wrong_time_index_entry_is_reported(run: Run, partition: Path) -> None:
    path = min(partition.glob("*.timeindex"))
    entries = list(struct.iter_unpack(">qi", path.read_bytes()))
    assert len(entries) >= 3
    wrong = [(entries[0][0] + 1, entries[0][1]), (entries[1][0], 1_000), *entries[2:], entries[2]]
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in wrong))
    done = run("dump-log", "--files", path)
    assert done.code == 1
    assert f"entry 0: timestamp {entries[0][0] + 1}, in the log it is {entries[0][0]}" in done.err
    assert "at byte 12: entry 1: offset 1000 is not in the log" in done.err
    assert f"entry {len(entries)}: timestamp {entries[2][0]} follows {entries[-1][0]}" in done.err
    assert len(done.lines) == 1 + len(wrong)


def test_the_sanity_check_finds_indexes_that_a_broker_rebuilds(run: Run, partition: Path) -> None:
    path = min(partition.glob("*.timeindex"))
    path.write_bytes(struct.pack(">qiqi", 9_000, 1, 1_000, 2))
    done = run("dump-log", "--files", path, "--index-sanity-check")
    assert (done.code, done.lines) == (1, [f"Dumping {path}"])
    assert "the last timestamp 1000 is less than the first, 9000" in done.err
    index = min(partition.glob("*.index"))
    index.write_bytes(struct.pack(">ii", -5, 1))
    assert (
        "the last offset is 5 below the segment's first"
        in run("dump-log", "--files", index, "--index-sanity-check").err
    )


def test_an_index_without_its_log_is_printed_and_reported(run: Run, partition: Path) -> None:
    path = min(partition.glob("*.index"))
    path.with_suffix(".log").unlink()
    done = run("dump-log", "--files", path)
    assert done.code == 1
    assert len(done.lines) == 1 + path.stat().st_size // 8
    assert "cannot be compared with the log: No such file or directory" in done.err


def test_producer_snapshots_are_printed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000010.snapshot"
    entries = [
        ProducerEntry(5, producer_epoch=1, last_timestamp_ms=77, batches=[RememberedBatch(9, 19, 4, 77)]),
        ProducerEntry(6, producer_epoch=0, coordinator_epoch=3, last_timestamp_ms=88, current_txn_first_offset=12),
    ]
    path.write_bytes(format_snapshot(entries))
    assert run("dump-log", "--files", path).lines[1:] == [
        (
            "producerId: 5 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
            "lastTimestamp: 77 firstSequence: 5 lastSequence: 9 lastOffset: 19 offsetDelta: 4 timestamp: 77"
        ),
        "producerId: 6 producerEpoch: 0 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong[12] lastTimestamp: 88",
    ]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    done = run("dump-log", "--files", path)
    assert (done.code, done.lines) == (1, [f"Dumping {path}"])
    assert f"{path}: producer snapshot has a wrong CRC" in done.err


def test_aborted_transactions_are_printed_up_to_the_damage(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 6, 0, 5, 6) + b"\x00\x00\x01")
    done = run("dump-log", "--files", path)
    assert done.lines[1:] == ["version: 0 producerId: 6 firstOffset: 0 lastOffset: 5 lastStableOffset: 6"]
    assert done.code == 1
    assert f"{path}: at byte 34: 3 bytes, where an entry has 34" in done.err


def test_checkpoints_are_printed(run: Run, partition: Path) -> None:
    epochs = partition / "leader-epoch-checkpoint"
    assert run("dump-log", "--files", epochs).lines[1:] == ["leaderEpoch: 0 startOffset: 0"]
    point = partition / "recovery-point-offset-checkpoint"
    point.write_text("0\n1\norders 3 17\n")
    assert run("dump-log", "--files", point).lines[1:] == ["topic: orders partition: 3 offset: 17"]
    point.write_text("0\n2\norders 3 17\n")
    done = run("dump-log", "--files", point)
    assert done.code == 1
    assert "cannot be read: 2 entries expected, 1 found" in done.err


def test_other_files_are_printed_if_one_is_missing(run: Run, tmp_path: Path) -> None:
    path = write_log(tmp_path, batch())
    done = run("dump-log", "--files", tmp_path / "7.log", path)
    assert done.code == 1
    assert f"{tmp_path / '7.log'}: No such file or directory" in done.err
    assert "baseOffset: 0" in done.out


def test_a_file_outside_a_log_directory_is_an_error(run: Run, tmp_path: Path) -> None:
    good = write_log(tmp_path, batch())
    notes, directory = tmp_path / "README.md", tmp_path / "1.log"
    notes.write_text("hello")
    directory.mkdir()
    for bad, why in ((notes, "not a file of a log directory"), (tmp_path, "not a file"), (directory, "Is a directory")):
        for files in ([bad], [good, bad], [bad, good]):
            done = run("dump-log", "--files", *files)
            assert done.code == 1
            assert f"{bad}: {why}" in done.err
            assert ("baseOffset: 0" in done.out) == (good in files)


def test_an_empty_log_is_not_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.touch()
    assert run("dump-log", "--files", path).code == 0


def test_an_index_without_its_log_is_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(bytes(7) + b"\1")
    assert run("dump-log", "--files", path).code == 1


def test_other_files_in_a_log_directory_get_a_note(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text("version: 0")
    done = run("dump-log", "--files", path)
    assert done.code == 0
    assert f"{path}: ignored" in done.err


def test_gaps_are_reported_but_are_not_damage(run: Run, tmp_path: Path) -> None:
    path = write_log(tmp_path, batch(base_offset=3), batch(base_offset=9))
    done = run("dump-log", "--files", path, "--deep-iteration")
    assert done.code == 0
    assert done.err.splitlines() == [f"kbroker dump-log: {path}: non-consecutive offsets: 3 is followed by 9"]


def test_max_bytes_ends_the_dump_without_a_complaint(run: Run, tmp_path: Path) -> None:
    path = write_log(tmp_path, batch(), batch(base_offset=1), batch(base_offset=2))
    done = run("dump-log", "--files", path, "--max-bytes", 2 * len(batch()) + 20)
    assert len(done.lines) == 4
    assert (done.code, done.err) == (0, "")


def test_a_batch_is_read_after_its_append_is_complete(tmp_path: Path) -> None:
    second, third = batch(base_offset=1), batch(base_offset=2)
    path = write_log(tmp_path, batch(), second[:70])
    file = RealDisk().open(str(path), writable=False)
    reader = BatchReader(file)
    path.write_bytes(bytes(batch() + second + third))
    assert [found.base_offset for found in reader] == [0, 1]
    assert reader.error is None
    file.close()
