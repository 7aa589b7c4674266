from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.storage.log_config import LogConfig
from kbroker.storage.segment import Segment
from tests.storage.logs import FailingDisk, append_as_follower, batch, fill, offsets, open_log, read_all
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, RecordBatch, batches, build_batch

SMALL = LogConfig(segment_bytes=4_000, index_interval_bytes=500)


def names(directory: Path, suffix: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in directory.glob(f"*{suffix}"))


# --- append ---


def test_an_append_gets_the_next_offsets_and_the_leaders_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = log.append(batch(3), leader_epoch=4, timestamp_ms=0)
    second = log.append(batch(2), leader_epoch=5, timestamp_ms=0)
    assert (first.first_offset, first.last_offset) == (0, 2)
    assert (second.first_offset, second.last_offset) == (3, 4)
    assert log.log_end_offset == 5
    assert [(b.base_offset, b.partition_leader_epoch) for b in read_all(log)] == [(0, 4), (3, 5)]
    assert log.leader_epochs.entries == [(4, 0), (5, 3)]


def test_read_only_batches_are_copied(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 1)
    data = bytes(batch())
    log.append(data, leader_epoch=0, timestamp_ms=0)
    log.append(memoryview(data), leader_epoch=0, timestamp_ms=0)
    assert RecordBatch(data).base_offset == 0
    assert offsets(log) == [0, 1, 2]


def test_several_batches_get_consecutive_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plan = log.append(batch(2) + batch(3) + batch(1), leader_epoch=0, timestamp_ms=0)
    assert (plan.first_offset, plan.last_offset) == (0, 5)
    assert offsets(log) == [0, 2, 5]


def test_nothing_is_read_before_the_commit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    plan = log.plan_append(batch(), leader_epoch=0, timestamp_ms=0)
    log.write(plan)
    assert log.log_end_offset == 0
    assert log.read(0, max_bytes=1_000).size == 0
    log.commit(plan)
    assert log.read(0, max_bytes=1_000).size == plan.size


def test_planning_changes_nothing_and_a_commit_counts_bytes_once(tmp_path: Path) -> None:
    log, data = open_log(tmp_path), bytearray(batch())
    log.append(batch(), leader_epoch=1, timestamp_ms=0)
    log.state.note_space(10_000, floor_bytes=0)
    sent = bytes(data)
    for _ in range(2):
        plan = log.plan_append(data, leader_epoch=1, timestamp_ms=0)
    assert (data, log.state.spare_bytes) == (sent, 10_000)
    log.write(plan)
    log.commit(plan)
    assert log.state.spare_bytes == 10_000 - len(data)
    assert [one.base_offset for one in read_all(log)] == [0, plan.first_offset]


def test_a_duplicate_is_answered_with_the_original_and_not_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = batch(2, timestamp=7_000, producer_id=1, producer_epoch=0, base_sequence=0)
    fill(log, 3)
    log.append(bytearray(sent), leader_epoch=0, timestamp_ms=0)
    again = log.append(bytearray(sent), leader_epoch=0, timestamp_ms=0)
    assert again.is_duplicate
    assert (again.first_offset, again.last_offset, again.timestamp_ms) == (3, 4, 7_001)
    assert log.log_end_offset == 5
    with pytest.raises(KafkaError) as raised:
        log.append(batch(producer_id=1, producer_epoch=0, base_sequence=9), leader_epoch=0, timestamp_ms=0)
    assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_follower_keeps_the_leaders_offsets_and_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = batch(2, base_offset=10, partition_leader_epoch=3) + batch(base_offset=15, partition_leader_epoch=4)
    plan = append_as_follower(log, data)
    assert (plan.first_offset, plan.last_offset) == (10, 15)
    assert log.log_end_offset == 16
    assert log.leader_epochs.entries == [(3, 10), (4, 15)]
    with pytest.raises(KafkaError):
        append_as_follower(log, batch(base_offset=15))
    assert RecordBatch(log.read(12, max_bytes=10_000).read()).base_offset == 15


def test_an_offset_too_far_for_the_segment_rolls_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_as_follower(log, batch(base_offset=5))
    far = 6 + (1 << 31)
    append_as_follower(log, batch(base_offset=far))
    assert names(tmp_path, ".log") == [0, far]
    # An empty segment with a too low base offset is replaced.
    log.truncate_fully_and_start_at(7)
    append_as_follower(log, batch(base_offset=7 + (1 << 32)))
    assert names(tmp_path, ".log") == [7 + (1 << 32)]
    assert offsets_from(log, 7) == [7 + (1 << 32)]


def offsets_from(log: object, offset: int) -> list[int]:
    return [one.base_offset for one in batches(log.read(offset, max_bytes=10_000).read())]  # type: ignore[attr-defined]


# --- roll ---


def test_a_segment_rolls_before_it_would_grow_too_big(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 100)
    bases = names(tmp_path, ".log")
    assert len(bases) > 3
    assert all(os.path.getsize(tmp_path / f"{base:020d}.log") <= 4_000 for base in bases)
    assert names(tmp_path, ".snapshot") == bases[1:]
    assert offsets(log) == list(range(100))


def test_a_batch_larger_than_segment_bytes_gets_its_own_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=200))
    fill(log, 3, size=500)
    assert names(tmp_path, ".log") == [0, 1, 2]
    assert offsets(log) == [0, 1, 2]


def test_a_segment_rolls_when_its_records_span_segment_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_ms=1_000))
    for timestamp in (5_000, 6_000, 5_500, 6_001, 6_500):
        log.append(batch(timestamp=timestamp), leader_epoch=0, timestamp_ms=99_999_999)
    assert names(tmp_path, ".log") == [0, 3]


def test_without_timestamps_a_segment_rolls_by_its_age(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_ms=1_000), timestamp_ms=50_000)
    for now in (50_000, 51_000, 51_001):
        log.append(batch(timestamp=-1, max_timestamp=-1), leader_epoch=0, timestamp_ms=now)
    assert names(tmp_path, ".log") == [0, 2]


def test_jitter_makes_a_segment_roll_earlier(tmp_path: Path) -> None:
    asked: list[int] = []

    def jitter(bound: int) -> int:
        asked.append(bound)
        return 400

    config = LogConfig(segment_ms=1_000, segment_jitter_ms=5_000)
    log = open_log(tmp_path, config=config, jitter_ms=jitter)
    log.append(batch(timestamp=0), leader_epoch=0, timestamp_ms=0)
    log.roll(timestamp_ms=0)
    for timestamp in (10_000, 10_600, 10_601):
        log.append(batch(timestamp=timestamp), leader_epoch=0, timestamp_ms=0)
    assert asked[0] == 1_000
    assert names(tmp_path, ".log") == [0, 1, 3]


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=0, segment_index_bytes=80))
    fill(log, 30)
    bases = names(tmp_path, ".log")
    # 80 bytes hold 10 offset entries and 6 time entries, one of them reserved for the roll; the first batch has none.
    assert bases == [0, 6, 12, 18, 24]
    assert os.path.getsize(tmp_path / f"{0:020d}.timeindex") == 60
    assert offsets(log) == list(range(30))


def test_an_empty_segment_does_not_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert not log.roll(timestamp_ms=0)
    fill(log, 1)
    assert log.roll(timestamp_ms=0)
    assert not log.roll(timestamp_ms=0)
    assert names(tmp_path, ".log") == [0, 1]


# --- read ---


def test_a_read_returns_whole_batches_from_the_offset_on(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    for _ in range(60):
        log.append(batch(3), leader_epoch=0, timestamp_ms=0)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = open_log(tmp_path, config=SMALL, clean_shutdown=True)
        for offset in range(180):
            for max_bytes in (1, 500, 1_700, 100_000):
                found = log.read(offset, max_bytes=max_bytes)
                got = list(batches(found.read()))
                assert got[0].base_offset <= offset <= got[0].last_offset
                assert sum(one.size for one in got) == found.size
                assert found.size <= max_bytes or len(got) == 1
                # A read returns everything that fits, up to the end of the segment.
                if found.size < max_bytes and got[-1].next_offset < 180 and len(got) > 1:
                    following = read_one(log, got[-1].next_offset)
                    assert found.size + following.size > max_bytes or following.base_offset in names(tmp_path, ".log")


def read_one(log: object, offset: int) -> RecordBatch:
    return RecordBatch(log.read(offset, max_bytes=1).read())  # type: ignore[attr-defined]


def test_consecutive_reads_return_every_batch_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 200)
    for max_bytes in (1, 300, 1_000, 2_500, 50_000):
        assert [one.base_offset for one in read_all(log, max_bytes=max_bytes)] == list(range(200))


def test_nothing_beyond_the_end_offset_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 90)
    log.append(batch(5), leader_epoch=0, timestamp_ms=0)
    for offset in range(95):
        for end_offset in range(0, 96, 5):
            got = list(batches(log.read(offset, max_bytes=2_000, end_offset=end_offset).read()))
            assert all(one.next_offset <= end_offset for one in got)
            if offset < end_offset <= 90:
                assert got
    # A batch that begins below the end offset but ends after it is not returned.
    assert log.read(90, max_bytes=9_000, end_offset=93).size == 0


def test_without_at_least_one_batch_large_batches_are_not_returned(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 40)
    for offset in (0, 17, 39):
        assert log.read(offset, max_bytes=50, at_least_one_batch=False).size == 0
        assert log.read(offset, max_bytes=50).size > 50


def test_offsets_outside_the_log_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 50)
    log.raise_log_start_offset(10)
    assert log.read(50, max_bytes=100).size == 0
    for offset in (9, 51):
        with pytest.raises(KafkaError) as raised:
            log.read(offset, max_bytes=100)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_range_stays_readable_when_its_segment_is_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(segment_bytes=4_000, retention_bytes=0, file_delete_delay_ms=0))
    fill(log, 100)
    found = log.read(0, max_bytes=1_000)
    log.apply_retention(log.plan_retention(high_watermark=100, timestamp_ms=0), now_ms=0, timestamp_ms=0)
    log.unlink_doomed(0)
    assert names(tmp_path, ".log") == [100]
    assert [one.base_offset for one in batches(found.read())] == list(range(5))


def test_reading_needs_no_index_in_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(index_interval_bytes=100))
    fill(log, 3_000, size=10)
    assert log.segments.active.unwritten_entries < 600
    assert log.segments.active.offset_index.entries > 1_400
    assert [RecordBatch(log.read(offset, max_bytes=1).read()).base_offset for offset in range(0, 3_000, 7)] == list(
        range(0, 3_000, 7)
    )


def test_a_replaced_tail_remains_readable(tmp_path: Path) -> None:
    # A thread that took the tail before it was replaced can still read the same batches from it.
    log = open_log(tmp_path)
    fill(log, 400, size=1)
    old_tail = log.tail
    fill(log, 600, size=1)
    assert log.tail is not old_tail
    found = old_tail.read(390, 1 << 20, 400, True)
    assert [one.base_offset for one in batches(found.read())] == list(range(390, 400))


# --- timestamps ---


def test_a_timestamp_look_up_finds_the_first_later_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    for number in range(60):
        log.append(batch(3, timestamp=1_000 + 10 * number), leader_epoch=number // 30, timestamp_ms=0)
    for timestamp in (0, 1_000, 1_001, 1_003, 1_303, 1_592):
        number, delta = divmod(max(timestamp, 1_000) - 1_000, 10)
        if delta > 2:
            number, delta = number + 1, 0
        want = (3 * number + delta, 1_000 + 10 * number + delta, number // 30)
        assert log.offset_for_timestamp(timestamp) == want
    assert log.offset_for_timestamp(1_593) is None
    log.raise_log_start_offset(50)
    assert log.offset_for_timestamp(0) == (50, 1_162, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_record_with_the_largest_timestamp_is_found(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, config=SMALL)
    assert log.max_timestamp() is None
    fill(log, 50)
    late = [Record(-1, timestamp, None, b"x") for timestamp in (5_000, 9_000, 9_000, 8_000)]
    log.append(build_batch(late, codec=codec), leader_epoch=3, timestamp_ms=0)
    fill(log, 50)
    assert log.max_timestamp() == (51, 9_000, 3)
    assert log.offset_for_timestamp(5_001) == (51, 9_000, 3)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 300), min_size=1, max_size=80), st.integers(0, 301))
def test_timestamp_look_ups_match_a_linear_search(
    tmp_path_factory: pytest.TempPathFactory, timestamps: list[int], wanted: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_log(directory, config=LogConfig(segment_bytes=1_500, index_interval_bytes=200))
    for timestamp in timestamps:
        log.append(batch(timestamp=timestamp), leader_epoch=0, timestamp_ms=0)
    expected = next((at for at, timestamp in enumerate(timestamps) if timestamp >= wanted), None)
    found = log.offset_for_timestamp(wanted)
    assert (found[0] if found is not None else None) == expected
    latest = log.max_timestamp()
    assert latest is not None
    assert latest[:2] == (timestamps.index(max(timestamps)), max(timestamps))


# --- close and load ---


def test_a_cleanly_closed_log_is_loaded_without_a_scan(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    for number in range(100):
        log.append(
            batch(timestamp=1_000 + number, producer_id=3, producer_epoch=0, base_sequence=number),
            leader_epoch=number // 40,
            timestamp_ms=0,
        )
    log.close()
    disk = FailingDisk()
    loaded = open_log(tmp_path, disk=disk, config=SMALL, clean_shutdown=True)
    touched = {line.split()[1] for line in disk.done if line.startswith(("open", "pread"))}
    active = names(tmp_path, ".log")[-1]
    assert touched <= {
        f"{active:020d}.log",
        f"{active:020d}.index",
        f"{active:020d}.timeindex",
        f"{100:020d}.snapshot",
        "leader-epoch-checkpoint",
    }
    assert not any(line.startswith(("pwrite", "truncate", "sync", "unlink", "rename")) for line in disk.done)
    assert loaded.log_end_offset == loaded.recovery_point == 100
    assert loaded.leader_epochs.entries == [(0, 0), (1, 40), (2, 80)]
    assert loaded.producers.producers[3].last_sequence == 99
    assert offsets(loaded) == list(range(100))
    assert loaded.max_timestamp() == (99, 1_099, 2)


def test_indexes_continue_unchanged_after_a_restart(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=500)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    through, stopped = open_log(tmp_path / "a", config=config), open_log(tmp_path / "b", config=config)
    for _ in range(10):
        fill(through, 7)
        fill(stopped, 7)
        stopped.close()
        stopped = open_log(tmp_path / "b", config=config, clean_shutdown=True)
    through.close()
    stopped.close()
    index = f"{0:020d}.index"
    assert (tmp_path / "a" / index).read_bytes() == (tmp_path / "b" / index).read_bytes()
    assert len((tmp_path / "a" / index).read_bytes()) > 80


def test_closing_an_unchanged_log_writes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 10)
    log.close()
    log.close()
    disk = FailingDisk()
    again = open_log(tmp_path, disk=disk, clean_shutdown=True)
    disk.done.clear()
    again.close()
    assert disk.done == []


def test_a_log_that_ends_before_its_start_is_emptied(tmp_path: Path) -> None:
    reports: list[str] = []
    log = open_log(tmp_path)
    fill(log, 10)
    log.close()
    log = open_log(tmp_path, clean_shutdown=True, log_start_offset=25, report=reports.append)
    assert (log.log_start_offset, log.log_end_offset) == (25, 25)
    assert names(tmp_path, ".log") == [25]
    assert len(reports) == 1
    assert log.append(batch(), leader_epoch=0, timestamp_ms=0).first_offset == 25


def test_preallocated_zeros_in_kafkas_indexes_are_ignored(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=500)
    log = open_log(tmp_path, config=config)
    fill(log, 60)
    log.close()
    for suffix, size in ((".index", 8_000), (".timeindex", 12_000)):
        os.truncate(tmp_path / f"{0:020d}{suffix}", size)
    log = open_log(tmp_path, config=config, clean_shutdown=True)
    entries = log.segments.active.index_entries
    fill(log, 60)
    assert offsets(log) == list(range(120))
    assert log.offset_for_timestamp(1_077) == (77, 1_077, 0)
    assert log.segments.active.index_entries > entries


def test_every_offset_is_found_in_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=SMALL)
    fill(log, 100)
    bases = names(tmp_path, ".log")
    for offset in range(100):
        segment: Segment = log.segments.from_offset(offset)[0]
        assert segment.base_offset == max(base for base in bases if base <= offset)
