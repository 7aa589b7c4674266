"""The records of the tier's metadata and their partitions: `kbroker.tiered.metadata_topic` and `metadata_reading`."""

from __future__ import annotations

import errno
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.remote_metadata import FINISHED, ORDERS, segment_metadata, update_to
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import MetadataEvent
from kbroker.tiered.metadata_reading import read_fetched, read_new, read_on
from kbroker.tiered.metadata_topic import Events, decode_event, encode_event, metadata_partition, read_events
from wire.compression import Codec
from wire.errors import KafkaError, Malformed
from wire.record_batch import Record, build_batch

COUNT = 50


# --- which partition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic_id", "expected"),
    [
        ("00000000-0000-0000-0000-000000000001", [35, 6, 18, 29, 12, 34]),
        ("12345678-9abc-def0-1234-56789abcdef0", [11, 2, 38, 12, 10, 20]),
        ("fedcba98-7654-3210-0f1e-2d3c4b5a6978", [6, 36, 44, 2, 24, 13]),
    ],
)
def test_partitions_are_assigned_as_by_apache_kafka(topic_id: str, expected: list[int]) -> None:
    for name in ("orders", "another name"):
        found = [metadata_partition(TopicIdPartition(UUID(topic_id), name, index), COUNT) for index in range(6)]
        assert found == expected


# --- one record -------------------------------------------------------------------------------------------------------

SMALL = TopicIdPartition(UUID(int=1), "t", 2)
BEGUN = replace(
    segment_metadata(SMALL, 3, 9, epochs={1: 3, 2: 5}, size=77, segment_id=UUID(int=4)),
    max_timestamp_ms=10,
    event_timestamp_ms=11,
    broker_id=6,
)
SEGMENT_ID = "02 74" + "00" * 15 + "01" + "00000002" + "00" + "00" * 15 + "04" + "00"
GOLDEN: list[tuple[MetadataEvent, str]] = [
    (
        BEGUN,
        "010000" + SEGMENT_ID + f"{3:016x} {9:016x} {6:08x} {10:016x} {11:016x}"
        f"03 {1:08x} {3:016x} 00 {2:08x} {5:016x} 00 {77:08x} 00 00 00",
    ),
    (
        replace(BEGUN, txn_index_empty=True, custom_metadata=b"xy", segment_leader_epochs=((0, 3),)),
        "010000" + SEGMENT_ID + f"{3:016x} {9:016x} {6:08x} {10:016x} {11:016x}"
        f"02 {0:08x} {3:016x} 00 {77:08x} 03 7879 00 01 00 01 01",
    ),
    (update_to(BEGUN, FINISHED), "010100" + SEGMENT_ID + f"{1:08x} {12:016x} 00 01 00"),
    (update_to(BEGUN, FINISHED, custom=b"z"), "010100" + SEGMENT_ID + f"{1:08x} {12:016x} 02 7a 01 00"),
]

PARTITION_DELETION = "010200" + "02 74" + "00" * 15 + "01" + "00000002" + "00" + f"{6:08x} {5:016x} 01 00"


@pytest.mark.parametrize(("event", "expected"), GOLDEN)
def test_record_bytes_follow_kafkas_schema(event: MetadataEvent, expected: str) -> None:
    assert encode_event(event) == bytes.fromhex(expected)
    assert decode_event(bytes.fromhex(expected)) == event


def test_leader_epochs_are_sorted_when_read() -> None:
    jumbled = replace(BEGUN, segment_leader_epochs=((2, 5), (1, 9), (1, 3)))
    assert decode_event(encode_event(jumbled)) == BEGUN


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x00" + encode_event(BEGUN)[1:],
        b"\x01\x09" + encode_event(BEGUN)[2:],
        b"\x01\x00\x01" + encode_event(BEGUN)[3:],
        encode_event(BEGUN) + b"\x00",
        encode_event(BEGUN)[:-1],
        encode_event(update_to(BEGUN, FINISHED))[:-2] + b"\x09\x00",
        bytes.fromhex(PARTITION_DELETION),
    ],
    ids=["empty", "cut frame", "frame 0", "type 9", "version 1", "surplus", "cut", "state 9", "deletion"],
)
def test_an_invalid_value_is_malformed(value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_event(value)


@given(st.binary(max_size=120), st.sampled_from([encode_event(event) for event, _ in GOLDEN]), st.integers(0, 200))
def test_any_bytes_are_an_event_or_malformed(noise: bytes, value: bytes, at: int) -> None:
    for data in (noise, value[:at] + noise, value[:at] + noise + value[at + len(noise) :]):
        try:
            event = decode_event(data)
        except Malformed:
            continue
        assert decode_event(encode_event(event)) == event


# --- a piece of the log -----------------------------------------------------------------------------------------------

HOME = metadata_partition(ORDERS, COUNT)


def batch(offset: int, *values: bytes | None, **header: int) -> bytes:
    records = [Record(offset=offset + at, timestamp=5, key=None, value=value) for at, value in enumerate(values)]
    return build_batch(records, base_offset=offset, **header)  # type: ignore[arg-type]


def begun(start: int) -> RemoteLogSegmentMetadata:
    return segment_metadata(ORDERS, start, start + 9, segment_id=UUID(int=start + 1))


def values(*starts: int) -> list[bytes]:
    return [encode_event(begun(start)) for start in starts]


def read(data: bytes, offset: int = 0, *, end_offset: int = 1000) -> Events:
    return read_events(data, offset, end_offset=end_offset, partition=HOME, partition_count=COUNT)


def starts(events: Events) -> list[tuple[int, int]]:
    found = []
    for offset, event in events.events:
        assert isinstance(event, RemoteLogSegmentMetadata)
        found.append((offset, event.start_offset))
    return found


def test_an_unreadable_record_is_skipped_and_reported() -> None:
    """Such a record permanently ends Apache Kafka's metadata consumer, and with it tiering."""
    stranger = encode_event(segment_metadata(TopicIdPartition(UUID(int=9), "t", 0), 0, 9))
    deletion = bytes.fromhex(PARTITION_DELETION)
    found = read(batch(0, *values(10), b"not a record", None, stranger, deletion, *values(20)))
    assert starts(found) == [(0, 10), (5, 20)]
    assert [(offset, count) for offset, count, _ in found.skipped] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert "belongs into partition" in found.skipped[2][2]
    assert found.next_offset == 6


def test_reading_starts_within_a_batch_and_ends_before_uncommitted_ones() -> None:
    data = batch(0, *values(10, 20, 30)) + batch(3, *values(40, 50))
    assert starts(read(data, 1, end_offset=4)) == [(1, 20), (2, 30)]
    assert read(data, 1, end_offset=4).next_offset == 3
    assert starts(read(data, 4, end_offset=5)) == [(4, 50)]


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_read(codec: Codec) -> None:
    assert starts(read(batch(0, *values(10, 20), codec=codec))) == [(0, 10), (1, 20)]


def test_transaction_markers_are_skipped() -> None:
    marker = build_batch(
        [Record(0, 5, b"\0\0\0\1", b"\0\0\0\0\0\0")], base_offset=0, producer_id=1, producer_epoch=0,
        is_transactional=True, is_control=True,
    )  # fmt: skip
    found = read(marker + batch(1, *values(10)))
    assert (starts(found), found.skipped, found.next_offset) == ([(1, 10)], [], 2)


# --- damage -----------------------------------------------------------------------------------------------------------


def log_with(batches: list[list[bytes]], *, segment_bytes: int = 1 << 20) -> tuple[SimulatedDisk, Log]:
    disk = SimulatedDisk()
    disk.make_directory("/log")
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    log = Log("/log", disk=disk, config=config, topic="__remote_log_metadata", partition=HOME)
    for each in batches:
        log.append(batch(0, *each), leader_epoch=0, timestamp_ms=1)
    return disk, log


def read_whole(log: Log, *, end_offset: int | None = None, max_bytes: int = 300) -> Events:
    """Read repeatedly until there is no progress; returns everything found."""
    end = log.log_end_offset if end_offset is None else end_offset
    found = Events(0)
    while found.next_offset < end:
        more = read_on(log, found.next_offset, end_offset=end, max_bytes=max_bytes, partition_count=COUNT)
        found.events += more.events
        found.skipped += more.skipped
        if more.next_offset == found.next_offset:
            break
        found.next_offset = more.next_offset
    return found


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    segment_bytes=st.sampled_from([400, 1 << 20]),
    data=st.data(),
)
def test_m10_every_intact_batch_is_read(
    sizes: list[int], flips: list[tuple[int, int]], segment_bytes: int, data: st.DataObject
) -> None:
    batches = [[encode_event(begun(10 * (sum(sizes[:at]) + each))) for each in range(n)] for at, n in enumerate(sizes)]
    disk, log = log_with(batches, segment_bytes=segment_bytes)
    places = [  # of each batch: file and position
        (segment.log_path, position) for segment in log.segments for position in _positions(disk, segment.log_path)
    ]
    assert len(places) == len(batches)
    damaged = set()
    for where, mask in flips:
        at = where % len(places)
        path, position = places[at]
        size = len(batch(0, *batches[at]))
        # No checksum covers the base offset: a wrong value in its last two bytes may be another offset of this log.
        inside = position + data.draw(st.integers(0, 5) | st.integers(8, size - 1))
        file = disk.open(path)
        file.pwrite(bytes([file.pread(1, inside)[0] ^ mask]), inside)
        damaged.add(at)
    found = read_whole(log)
    assert found.next_offset == log.log_end_offset
    expected = [
        (offset, 10 * offset)
        for at, size in enumerate(sizes)
        if at not in damaged
        for offset in range(sum(sizes[:at]), sum(sizes[: at + 1]))
    ]
    # A flipped byte of the epoch, which no checksum covers, or one flipped back, is harmless.
    assert set(expected) <= set(starts(found))
    assert starts(found) == sorted(starts(found))
    assert sum(count for _, count, _ in found.skipped) == log.log_end_offset - len(found.events)


def test_m10_a_damaged_length_loses_only_its_batch() -> None:
    disk, log = log_with([values(0), values(10), values(20)], segment_bytes=400)
    assert len(log.segments) == 2
    disk.open(log.segments.first.log_path).pwrite(b"\x01", 8)
    found = read_whole(log)
    assert (starts(found), found.skipped) == ([(1, 10), (2, 20)], [(0, 1, "damaged")])


def _positions(disk: SimulatedDisk, path: str) -> list[int]:
    file, position, found = disk.open(path), 0, []
    while position < file.size():
        found.append(position)
        position += 12 + int.from_bytes(file.pread(4, position + 8), "big")
    return found


def read_at_once(log: Log, offset: int, end_offset: int) -> Events | None:
    return read_new(log, offset, end_offset=end_offset, partition_count=COUNT)


def test_read_new_gives_the_same_events_as_read_on() -> None:
    _, log = log_with([values(0), values(10, 20), values(30)])
    for offset, end in ((0, 1), (0, 4), (1, 3), (2, 3), (2, 4), (3, 4)):
        assert read_at_once(log, offset, end) == read_on(
            log, offset, end_offset=end, max_bytes=8 << 10, partition_count=COUNT
        )


def test_read_new_refuses_slow_or_damaged_reads() -> None:
    disk, log = log_with([values(*range(0, 90, 10)), values(100), values(110, 120)])
    assert read_at_once(log, 0, 12) is None, "many"
    assert read_at_once(log, 9, 9) is None, "nothing"
    assert read_at_once(log, 10, 11) is None, "a part of a batch"
    assert starts(read_at_once(log, 9, 11) or Events(0)) == [(9, 100)]
    size = sum(len(batch(0, *each)) for each in (values(*range(0, 90, 10)), values(100)))
    disk.open(log.segments.active.log_path).pwrite(b"\xff", size + 70)
    assert read_at_once(log, 10, 12) is None, "damaged"
    disk.inject(Fault(errno.EMFILE, name="read"))
    assert read_at_once(log, 9, 10) is None, "the disk fails"
    assert starts(read_at_once(log, 9, 10) or Events(0)) == [(9, 100)]
    log.raise_log_start_offset(10)
    loaded = Log("/log", disk=disk, config=log.config, topic="__remote_log_metadata", partition=HOME)
    assert read_at_once(loaded, 9, 10) is None, "history"


def test_a_partly_committed_batch_is_not_skipped() -> None:
    _, log = log_with([values(0), values(10, 20)])
    found = read_whole(log, end_offset=2)
    assert (starts(found), found.skipped, found.next_offset) == ([(0, 0)], [], 1)
    assert starts(read_whole(log)) == [(0, 0), (1, 10), (2, 20)]


def test_damage_is_skipped_only_up_to_the_high_watermark() -> None:
    disk, log = log_with([values(0), values(10), values(20), values(30)])
    size = len(batch(0, *values(0)))
    for at in (1, 2):
        disk.open(log.segments.active.log_path).pwrite(b"\xff", at * size + 70)
    found = read_whole(log, end_offset=2)
    assert (starts(found), found.skipped, found.next_offset) == ([(0, 0)], [(1, 1, "damaged")], 2)
    assert starts(read_whole(log)) == [(0, 0), (3, 30)]


def fetched(data: bytes, offset: int = 0, *, end_offset: int = 1000) -> Events:
    return read_fetched(data, offset, end_offset=end_offset, partition=HOME, partition_count=COUNT)


def flipped(data: bytes) -> bytes:
    """A batch that is damaged in its last byte."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_m10_damage_in_a_fetched_answer_is_skipped_at_once() -> None:
    damaged = flipped(batch(0, *values(0, 10, 20))) + flipped(batch(3, *values(30, 40)))
    found = fetched(damaged + batch(5, *values(50)), 1)
    assert (starts(found), found.next_offset) == ([(5, 50)], 6)
    assert found.skipped == [(1, 4, "damaged at the leader")]
    found = fetched(damaged, 1)
    assert (found.events, found.next_offset) == ([], 5)
    assert found.skipped == [(1, 4, "damaged at the leader")]
    assert fetched(b"\xff" * 100, 1).next_offset == 2, "no header says where the damage ends"
    assert fetched(b"", 1, end_offset=1) == Events(1)


def test_damage_in_a_fetched_answer_is_skipped_only_up_to_the_high_watermark() -> None:
    data = flipped(batch(0, *values(0))) + batch(1, *values(10, 20))
    found = fetched(data, end_offset=2)
    assert (found.events, found.next_offset, found.skipped) == ([], 1, [(0, 1, "damaged at the leader")])
    with pytest.raises(KafkaError, match="OFFSET_NOT_AVAILABLE"):
        fetched(data[len(batch(0, *values(0))) :], 1, end_offset=2)


def test_a_truncated_log_is_read_from_its_start() -> None:
    _, log = log_with([values(0), values(10), values(20)])
    log.raise_log_start_offset(2)
    found = read_whole(log)
    assert (starts(found), found.skipped) == ([(2, 20)], [(0, 2, "the log starts later")])
