"""Which log is cleaned, how far, and into how many segments; and what hostile logs cannot do to a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kbroker.storage.cleaning import Cleanable, SourceSegment, assess, dirtiest, group_segments
from kbroker.storage.cleaning_records import scan_keys, timestamp_deltas, with_timestamp_delta
from kbroker.storage.log_config import LogConfig
from tests.storage.cleaning import COMPACTED, clean_log, contents, final_map, put
from tests.storage.logs import open_log, read_all
from wire.batch_header import HEADER_SIZE
from wire.compression import Codec
from wire.errors import Malformed
from wire.record_batch import Record, build_batch
from wire.record_walk import find_records

NOW = 1_000_000


@dataclass
class Segment:
    base_offset: int
    size: int


def assessed(*, config: LogConfig = LogConfig(), timestamps: tuple[int, ...] = (), **given: object) -> Cleanable:  # noqa: B008
    """Segments of 100 offsets and 1,000 bytes: 0, 100, 200, and 300, the active one."""
    segments = [Segment(start, 1_000) for start in (0, 100, 200, 300)]
    values: dict[str, object] = {
        "log_start_offset": 0,
        "log_end_offset": 350,
        "cleaned_offset": None,
        "stable_offset": 350,
        "timestamp_ms": NOW,
        "first_timestamp": lambda at: timestamps[at] if timestamps else NOW,
        "largest_timestamp": lambda at: timestamps[at] if timestamps else NOW,
        **given,
    }
    return assess(segments, config, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "dirty", "end", "clean_bytes", "cleanable_bytes"),
    [
        ({}, 0, 300, 0, 3_000),
        ({"cleaned_offset": 200}, 200, 300, 2_000, 1_000),
        ({"cleaned_offset": 150}, 150, 300, 2_000, 2_000),
        ({"cleaned_offset": 300}, 300, 300, 3_000, 0),
        ({"cleaned_offset": 340}, 340, 300, 4_000, 0),
        ({"cleaned_offset": 900}, 0, 300, 0, 3_000),
        ({"cleaned_offset": 100, "log_start_offset": 200}, 200, 300, 2_000, 1_000),
        ({"stable_offset": 250}, 0, 200, 0, 2_000),
        ({"stable_offset": 20}, 0, 0, 0, 0),
        ({"stable_offset": 100}, 0, 100, 0, 1_000),
    ],
)
def test_a_pass_covers_what_is_dirty_closed_and_stable(
    given: dict[str, int], dirty: int, end: int, clean_bytes: int, cleanable_bytes: int
) -> None:
    found = assessed(**given)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (dirty, end)
    assert (found.clean_bytes, found.cleanable_bytes) == (clean_bytes, cleanable_bytes)


@pytest.mark.parametrize(
    ("timestamps", "end"), [((NOW - 10, 0, 0), 0), ((0, NOW - 10, 0), 100), ((NOW - 50, 0, NOW - 49), 200)]
)
def test_young_segments_wait_for_min_compaction_lag_ms(timestamps: tuple[int, ...], end: int) -> None:
    found = assessed(config=LogConfig(min_compaction_lag_ms=50), timestamps=timestamps)
    assert found.first_uncleanable_offset == end


@pytest.mark.parametrize(
    ("timestamps", "cleaned", "delay"),
    [
        ((NOW - 100, NOW, NOW), None, 0),
        ((NOW - 101, NOW, NOW), None, 1),
        ((NOW - 500, NOW - 130, NOW), 100, 30),
        ((-1, NOW - 130, NOW), None, 30),
        ((NOW - 500, NOW, NOW), 300, 0),
    ],
)
def test_max_compaction_lag_ms_makes_a_log_due(timestamps: tuple[int, ...], cleaned: int | None, delay: int) -> None:
    config = LogConfig(max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0)
    found = assessed(config=config, timestamps=timestamps, cleaned_offset=cleaned)
    assert found.delay_ms == delay
    assert found.is_due == bool(delay)


def test_the_log_with_the_largest_dirty_ratio_comes_first() -> None:
    def log(clean: int, dirty: int, *, delay_ms: int = 0) -> Cleanable:
        return Cleanable(0, 1, clean, dirty, delay_ms, 0.5)

    logs = {"half": log(10, 10), "more": log(10, 20), "most": log(1, 5), "late": log(10, 1, delay_ms=1)}
    assert dirtiest(logs.items()) == ("most", logs["most"])
    assert dirtiest([("half", logs["half"])]) is None, "the ratio must be above the minimum"
    assert dirtiest([("late", logs["late"])]) == ("late", logs["late"])
    assert dirtiest([("none", log(0, 0, delay_ms=9))]) is None


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([40, 40, 40], [[0, 1], [2]]),
        ([100, 100], [[0], [1]]),
        ([200, 10, 10], [[0], [1, 2]]),
        ([0, 0, 100], [[0, 1, 2]]),
        ([10] * 10, [[*range(10)]]),
    ],
)
def test_segments_are_merged_up_to_the_segment_size(sizes: list[int], groups: list[list[int]]) -> None:
    segments = [SourceSegment(at, size, 8, 12) for at, size in enumerate(sizes)]
    found = group_segments(segments, segment_bytes=100, index_bytes=1_000, end_offset=len(sizes))
    assert [[one.base_offset for one in group] for group in found] == groups


def test_index_sizes_and_relative_offsets_limit_a_group() -> None:
    segments = [SourceSegment(at, 1, 60, 0) for at in range(3)]
    assert len(group_segments(segments, segment_bytes=100, index_bytes=120, end_offset=3)) == 2
    far = [SourceSegment(0, 1, 0, 0), SourceSegment(5, 1, 0, 0), SourceSegment(1 << 31, 1, 0, 0)]
    found = group_segments(far, segment_bytes=100, index_bytes=120, end_offset=(1 << 31) + 1)
    assert [len(group) for group in found] == [2, 1]


# --- records ---


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 300, 9_000])
@pytest.mark.parametrize("size", [0, 3, 62, 63, 64, 200])
def test_records_of_one_size_are_scanned_like_any_others(count: int, size: int) -> None:
    records = [Record(2 * at, 1_000 + at % 200, b"key-%06d" % at, b"v" * size) for at in range(count)]
    records[count // 2] = records[count // 2]._replace(value=None)
    data = build_batch(records)
    keys, tombstones = scan_keys(data, HEADER_SIZE, len(data), count)
    assert keys == [record.key for record in records]
    assert tombstones == [count // 2]
    starts: list[int] = []
    find_records(data, HEADER_SIZE, len(data), count, starts)
    assert [1_000 + delta for delta in timestamp_deltas(data, starts)] == [one.timestamp for one in records]
    for at in range(0, count, 50):
        end = starts[at + 1] if at + 1 < count else len(data)
        moved = with_timestamp_delta(data, starts[at], end, 70_000)
        assert scan_keys(moved, 0, len(moved), 1)[0] == [records[at].key]
        assert timestamp_deltas(moved, [0]) == [70_000]


@pytest.mark.parametrize("cut", [1, 5, 30, 100])
def test_cut_records_are_refused(cut: int) -> None:
    data = build_batch([Record(-1, 0, b"key", b"value") for _ in range(20)])[HEADER_SIZE:]
    with pytest.raises(Malformed):
        scan_keys(data, 0, len(data) - cut, 20)
    with pytest.raises(Malformed):
        scan_keys(data, 0, len(data), 19)
    with pytest.raises(Malformed):
        scan_keys(b"", 0, 0, -1)


# --- hostile logs ---


def test_long_keys_that_share_a_beginning_stay_apart(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=replace(COMPACTED, segment_bytes=1 << 20))
    keys = ["x" * 300_000 + str(number) for number in range(3)]
    for number in range(4):
        put(log, [(key, str(number)) for key in keys])
    log.roll(timestamp_ms=0)
    before = final_map(log)
    assert clean_log(log) is not None
    assert final_map(log) == before
    assert len(contents(log)) == 3


def test_a_batch_larger_than_a_read_is_cleaned(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=replace(COMPACTED, segment_bytes=1 << 30))
    put(log, [("a", "x" * (5 << 20)), ("b", "y" * (5 << 20))])
    put(log, [("a", "z")])
    log.roll(timestamp_ms=0)
    assert clean_log(log) is not None
    assert [key for _, key, _ in contents(log)] == [b"b", b"a"]


def test_a_batch_that_unpacks_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=COMPACTED)
    put(log, [("a", "x" * (2 << 20))], codec=Codec.GZIP)
    log.roll(timestamp_ms=0)
    before = [bytes(one.data) for one in read_all(log)]
    with pytest.raises(Malformed):
        clean_log(log, max_decompressed_bytes=1 << 20)
    assert [bytes(one.data) for one in read_all(log)] == before


def test_a_batch_with_more_keys_than_the_map_holds_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=COMPACTED)
    put(log, [(str(number), "v") for number in range(30)])
    put(log, [("a", "v")])
    log.roll(timestamp_ms=0)
    with pytest.raises(Malformed, match="more keys"):
        clean_log(log, map_entries=29)
    assert len(contents(log)) == 31
    assert clean_log(log, map_entries=30) is not None


def test_a_full_map_cleans_a_part_and_later_the_rest(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=COMPACTED)
    for _ in range(3):
        for number in range(40):
            put(log, [(str(number), "v")])
    log.roll(timestamp_ms=0)
    ends = []
    while (finished := clean_log(log, map_entries=15)) is not None:
        ends.append(finished.end_offset)
    assert ends == sorted(set(ends))
    assert len(ends) > 5
    assert len(contents(log)) == 40


def test_readers_of_a_replaced_segment_keep_its_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=replace(COMPACTED, file_delete_delay_ms=0))
    for number in range(60):
        put(log, [(str(number % 3), "v" * 100)])
    segments = tuple(log.segments)
    held = log.read(10, max_bytes=500)
    expected = [bytes(one.open().file.pread(one.size, 0)) for one in segments]
    data = held.read()
    assert clean_log(log) is not None
    log.unlink_doomed(1)
    assert held.read() == data
    assert [bytes(one.open().file.pread(one.size, 0)) for one in segments] == expected
    for one in segments[:-1]:
        found = one.find(one.base_offset + 1)
        assert found is not None
        assert found[1].base_offset == one.base_offset + 1
