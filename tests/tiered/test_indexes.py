"""The indexes of remote segments: `kbroker.tiered.indexes`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.runtime.ports import ReadableFile
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY, CorruptIndex
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_segments import INTERVAL_BYTES, START_MS, WrittenSegment, write_segment
from kbroker.tiered.api import IndexType, RemoteStorageError
from kbroker.tiered.indexes import (
    AbortedTransaction,
    RemoteIndexes,
    checked_offsets,
    checked_times,
    checked_transactions,
    rebuilt,
)
from wire.record_batch import batches as batches_of

START = 1_000


def written(batches: int = 60, *, value_bytes: int = 700, interval_bytes: int = INTERVAL_BYTES) -> WrittenSegment:
    return write_segment(
        "",
        disk=SimulatedDisk(),
        batches=batches,
        start_offset=START,
        value_bytes=value_bytes,
        interval_bytes=interval_bytes,
    )


def file_with(data: bytes) -> ReadableFile:
    file = SimulatedDisk().open("segment", create=True)
    file.pwrite(data, 0)
    return file


def indexes_of(segment: WrittenSegment) -> RemoteIndexes:
    return RemoteIndexes(START, segment.indexes[IndexType.OFFSET], segment.indexes[IndexType.TIMESTAMP], b"")


SEGMENT = written()
HEADERS = list(batches_of(SEGMENT.log))
POSITIONS = [sum(header.size for header in HEADERS[:number]) for number in range(len(HEADERS))]


def test_the_segment_of_these_tests_has_entries_to_look_up() -> None:
    indexes = indexes_of(SEGMENT)
    assert len(indexes.offsets) > 5 * OFFSET_ENTRY.size
    assert len(indexes.times) > 5 * TIME_ENTRY.size


@given(st.integers(START - 5, START + 3 * 60 + 5))
def test_a_lookup_by_offset_starts_at_most_one_interval_early(offset: int) -> None:
    indexes = indexes_of(SEGMENT)
    position = indexes.position_for(offset)
    number = POSITIONS.index(position)
    holder = next((at for at, header in enumerate(HEADERS) if header.last_offset >= offset), len(HEADERS) - 1)
    assert number <= holder
    assert POSITIONS[holder] - position <= INTERVAL_BYTES + 2 * max(header.size for header in HEADERS)
    entry = indexes.floor_offset(offset)
    assert (entry is None) == (position == 0)
    if entry is not None:
        assert HEADERS[number].last_offset == entry.last_offset <= offset


@given(st.integers(START - 5, START + 3 * 60 + 5))
def test_the_end_position_is_at_most_two_entries_late(offset: int) -> None:
    end = indexes_of(SEGMENT).end_position_for(offset)
    holder = next((at for at, header in enumerate(HEADERS) if header.last_offset >= offset), len(HEADERS) - 1)
    behind = [at for _, at in OFFSET_ENTRY.iter_unpack(SEGMENT.indexes[IndexType.OFFSET]) if at > POSITIONS[holder]]
    assert end in (*behind[:2], None)
    assert end is not None or len(behind) < 2
    assert end is None or end >= POSITIONS[holder] + HEADERS[holder].size


@given(st.integers(-5, len(SEGMENT.log) + 5))
def test_a_lookup_by_position_finds_the_last_batch_before_it(position: int) -> None:
    entry = indexes_of(SEGMENT).floor_position(position)
    indexed = [at for _, at in OFFSET_ENTRY.iter_unpack(SEGMENT.indexes[IndexType.OFFSET]) if at <= position]
    assert (None if entry is None else entry.position) == (indexed[-1] if indexed else None)


@given(st.integers(START_MS - 2_000, START_MS + 185_000), st.integers(START, START + 180))
def test_a_lookup_by_time_skips_no_matching_record(timestamp: int, start_offset: int) -> None:
    """Records are one second apart."""
    position = indexes_of(SEGMENT).position_for_timestamp(timestamp, start_offset)
    first = max(start_offset, START + -((START_MS - timestamp) // 1_000))
    wanted = [header for header in HEADERS if header.last_offset >= first]
    assert position in POSITIONS
    if wanted:
        assert position <= POSITIONS[HEADERS.index(wanted[0])]


def test_a_lookup_before_all_entries_gives_the_start() -> None:
    indexes = indexes_of(SEGMENT)
    assert indexes.floor_offset(START) is None
    assert indexes.position_for(START) == indexes.position_for_timestamp(START_MS - 1, START) == 0


@settings(deadline=None)
@given(
    batches=st.integers(1, 50), value_bytes=st.integers(0, 3_000), interval_bytes=st.sampled_from([0, 500, 4096, 10**6])
)
def test_rebuilt_indexes_equal_those_that_the_broker_wrote(batches: int, value_bytes: int, interval_bytes: int) -> None:
    segment = written(batches, value_bytes=value_bytes, interval_bytes=interval_bytes)
    offsets, times = rebuilt(file_with(segment.log), segment.finished, interval_bytes=interval_bytes)
    assert offsets == segment.indexes[IndexType.OFFSET]
    assert times == segment.indexes[IndexType.TIMESTAMP]


def test_indexes_are_rebuilt_from_batches_larger_than_a_piece() -> None:
    segment = written(3, value_bytes=4_300_000)
    made = rebuilt(file_with(segment.log), segment.finished, interval_bytes=INTERVAL_BYTES)
    assert made == (segment.indexes[IndexType.OFFSET], segment.indexes[IndexType.TIMESTAMP])


@pytest.mark.parametrize("cut", [1, 60, 61, 900])
def test_m13_no_index_is_rebuilt_from_a_truncated_segment(cut: int) -> None:
    with pytest.raises(RemoteStorageError):
        rebuilt(file_with(SEGMENT.log[:-cut]), SEGMENT.finished, interval_bytes=INTERVAL_BYTES)


def test_m13_no_index_is_rebuilt_from_bytes_of_another_segment() -> None:
    end = POSITIONS[30]
    longer = replace(SEGMENT.finished, segment_size_in_bytes=len(SEGMENT.log) + end)
    for data, metadata in [
        (bytes(len(SEGMENT.log)), SEGMENT.finished),
        (SEGMENT.log[:end] + b"\0" * 100 + SEGMENT.log[end + 100 :], SEGMENT.finished),
        (SEGMENT.log, replace(SEGMENT.finished, start_offset=START + 1)),
        (SEGMENT.log, replace(SEGMENT.finished, end_offset=START + 100)),
        (SEGMENT.log + SEGMENT.log[:end], longer),  # offsets that begin again
    ]:
        with pytest.raises(RemoteStorageError):
            rebuilt(file_with(data), metadata, interval_bytes=INTERVAL_BYTES)


def test_zero_padding_of_an_index_is_removed() -> None:
    for check, index_type, entry in [
        (checked_offsets, IndexType.OFFSET, OFFSET_ENTRY),
        (checked_times, IndexType.TIMESTAMP, TIME_ENTRY),
    ]:
        data = SEGMENT.indexes[index_type]
        assert check(data + bytes(entry.size * 700), SEGMENT.finished) == data


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\x7f" * 8,
        lambda data: data[16:24] + data[8:16] + data[:8] + data[24:],
        lambda data: data[:8] + data[:8] + data[16:],
        lambda data: data + OFFSET_ENTRY.pack(180, len(SEGMENT.log) - 100),
        lambda data: data + OFFSET_ENTRY.pack(179, len(SEGMENT.log)),
        lambda data: OFFSET_ENTRY.pack(-7, 5) + data,
    ],
)
def test_an_offset_index_that_does_not_fit_is_refused(damage) -> None:
    with pytest.raises(CorruptIndex):
        checked_offsets(damage(SEGMENT.indexes[IndexType.OFFSET]), SEGMENT.finished)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: data[12:24] + data[:12] + data[24:],
        lambda data: data + TIME_ENTRY.pack(SEGMENT.metadata.max_timestamp_ms + 1, 179),
        lambda data: data[:-12] + TIME_ENTRY.pack(SEGMENT.metadata.max_timestamp_ms, 180),
        lambda data: data[:-12] + TIME_ENTRY.pack(SEGMENT.metadata.max_timestamp_ms, 3),
    ],
)
def test_a_time_index_that_does_not_fit_is_refused(damage) -> None:
    with pytest.raises(CorruptIndex):
        checked_times(damage(SEGMENT.indexes[IndexType.TIMESTAMP]), SEGMENT.finished)


def aborted(*transactions: AbortedTransaction, version: int = 0) -> bytes:
    return b"".join(TRANSACTION_ENTRY.pack(version, *transaction) for transaction in transactions)


FIRST, SECOND = AbortedTransaction(7, START - 5, START + 4, START - 5), AbortedTransaction(8, START + 1, START + 9, 0)


def test_aborted_transactions_are_read_as_they_were_written() -> None:
    data = checked_transactions(aborted(FIRST, SECOND), SEGMENT.finished)
    assert list(RemoteIndexes(START, b"", b"", data).aborted_transactions()) == [FIRST, SECOND]


@pytest.mark.parametrize(
    "data",
    [
        aborted(FIRST)[:-1],
        aborted(FIRST, version=1),
        aborted(SECOND, FIRST),
        aborted(FIRST._replace(first_offset=START + 5)),
        aborted(FIRST._replace(last_offset=START - 1)),
        aborted(FIRST._replace(last_offset=START + 180)),
    ],
)
def test_a_transaction_index_that_does_not_fit_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        checked_transactions(data, SEGMENT.finished)
