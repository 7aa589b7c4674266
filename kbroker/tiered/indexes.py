"""The verified indexes of one remote segment, and how to rebuild them from the segment's bytes.

They are kept in their stored format: an offset entry has 8 bytes (relative last offset of a batch, position of the
batch), a time entry 12 (largest timestamp so far, relative last offset of its batch), an aborted transaction 34. All
are in ascending order, so a lookup is a binary search over the bytes.

Source  OffsetIndex, TimeIndex, TransactionIndex, AbortedTxn and RemoteIndexCache of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.ports import ReadableFile
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY, CorruptIndex
from kbroker.storage.transaction_index import AbortedTransaction
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.layout import stored_size


class OffsetPosition(NamedTuple):
    """An entry of an offset index: the batch that starts at `position` ends with `last_offset`."""

    last_offset: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class RemoteIndexes:
    """The offset, time and transaction index of a segment. Immutable, and independent of any file, so it may be kept
    for any time.

    Shape  bytes as stored; `transactions` is empty for a segment without aborted transactions
    """

    start_offset: int
    offsets: bytes
    times: bytes
    transactions: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) + len(self.times) + len(self.transactions)

    def floor_offset(self, offset: int) -> OffsetPosition | None:
        """The last indexed batch that ends at or before `offset`; None if all end after it.

        A reader can detect a wrong index: the batch at the position must end with exactly this offset.
        """
        return self._offset_entry(self._count_upto(offset) - 1)

    def position_for(self, offset: int) -> int:
        """Where to start the search for the batch that contains `offset`: it is there or shortly after."""
        found = self.floor_offset(offset)
        return 0 if found is None else found.position

    def end_position_for(self, offset: int) -> int | None:
        """An upper bound for the end position of the batch that contains `offset`: the start of the next indexed batch
        after it; None if there is none.
        """
        found = self._offset_entry(self._count_upto(offset - 1) + 1)
        return None if found is None else found.position

    def floor_position(self, position: int) -> OffsetPosition | None:
        """The last indexed batch that starts at or before `position`."""
        return self._offset_entry(_count_upto(OFFSET_ENTRY, self.offsets, 1, position) - 1)

    def position_for_timestamp(self, timestamp: int, start_offset: int) -> int:
        """Where to start the search for the first record from `start_offset` on with at least this timestamp: it is at
        or after the offset of the last time entry whose timestamp is at most `timestamp`.
        """
        if count := _count_upto(TIME_ENTRY, self.times, 0, timestamp):
            _, relative_offset = TIME_ENTRY.unpack_from(self.times, (count - 1) * TIME_ENTRY.size)
            start_offset = max(start_offset, self.start_offset + relative_offset)
        return self.position_for(start_offset)

    def aborted_transactions(self) -> Iterator[AbortedTransaction]:
        for _, *fields in TRANSACTION_ENTRY.iter_unpack(self.transactions):
            yield AbortedTransaction._make(fields)

    def _count_upto(self, offset: int) -> int:
        """The number of indexed batches that end at or before `offset`."""
        return _count_upto(OFFSET_ENTRY, self.offsets, 0, offset - self.start_offset)

    def _offset_entry(self, number: int) -> OffsetPosition | None:
        if not 0 <= number < len(self.offsets) // OFFSET_ENTRY.size:
            return None
        relative_offset, position = OFFSET_ENTRY.unpack_from(self.offsets, number * OFFSET_ENTRY.size)
        return OffsetPosition(self.start_offset + relative_offset, position)


def _count_upto(entry: Struct, data: bytes, field: int, target: int) -> int:
    """The number of entries whose field is at most `target`; the entries are in ascending order."""
    unpack, size = entry.unpack_from, entry.size
    return bisect_right(range(len(data) // size), target, key=lambda at: unpack(data, at * size)[field])


# --- checking ---------------------------------------------------------------------------------------------------------


def checked_offsets(data: bytes, metadata: RemoteLogSegmentMetadata) -> bytes:
    """The offset index without Kafka's zero padding at the end; CorruptIndex if it does not fit the segment."""
    data = _trimmed(data, OFFSET_ENTRY, "offset index")
    data = _clipped(data, OFFSET_ENTRY, 0, metadata.end_offset - metadata.start_offset, metadata)
    last_offset, last_position = -1, -1
    for relative_offset, position in OFFSET_ENTRY.iter_unpack(data):
        if relative_offset <= last_offset or position <= last_position:
            raise CorruptIndex(f"offset index: {relative_offset}, {position} after {last_offset}, {last_position}")
        last_offset, last_position = relative_offset, position
    if last_offset > metadata.end_offset - metadata.start_offset or last_position >= metadata.segment_size_in_bytes:
        raise CorruptIndex(f"offset index: {last_offset}, {last_position} is beyond the segment")
    return data


def checked_times(data: bytes, metadata: RemoteLogSegmentMetadata) -> bytes:
    """The same for the time index."""
    data = _trimmed(data, TIME_ENTRY, "time index")
    data = _clipped(data, TIME_ENTRY, 1, metadata.end_offset - metadata.start_offset, metadata)
    last_timestamp = last_offset = -1
    for timestamp, relative_offset in TIME_ENTRY.iter_unpack(data):
        if timestamp <= last_timestamp or relative_offset < last_offset:
            raise CorruptIndex(f"time index: {timestamp}, {relative_offset} after {last_timestamp}, {last_offset}")
        last_timestamp, last_offset = timestamp, relative_offset
    if last_offset > metadata.end_offset - metadata.start_offset or last_timestamp > max(0, metadata.max_timestamp_ms):
        raise CorruptIndex(f"time index: {last_timestamp}, {last_offset} is beyond the segment")
    return data


def checked_transactions(data: bytes, metadata: RemoteLogSegmentMetadata) -> bytes:
    """The same for the transaction index; all its abort markers are in the segment."""
    if len(data) % TRANSACTION_ENTRY.size:
        raise CorruptIndex(f"transaction index: {len(data)} bytes, not a multiple of {TRANSACTION_ENTRY.size}")
    data = _clipped(data, TRANSACTION_ENTRY, 3, metadata.end_offset, metadata)
    previous = metadata.start_offset - 1
    for version, _, first_offset, last_offset, _ in TRANSACTION_ENTRY.iter_unpack(data):
        if version != 0 or first_offset > last_offset or not previous < last_offset <= metadata.end_offset:
            raise CorruptIndex(f"transaction index: version {version}, {first_offset} to {last_offset}")
        previous = last_offset
    return data


def _trimmed(data: bytes, entry: Struct, name: str) -> bytes:
    if len(data) % entry.size:
        raise CorruptIndex(f"{name}: {len(data)} bytes, not a multiple of {entry.size}")
    end = len(data)
    while end and not any(data[end - entry.size : end]):
        end -= entry.size
    return data[:end]


def _clipped(data: bytes, entry: Struct, field: int, last: int, metadata: RemoteLogSegmentMetadata) -> bytes:
    """The index without the entries whose field is beyond `last`, if only a part of the segment is attached."""
    if stored_size(metadata) == metadata.segment_size_in_bytes:
        return data
    return data[: entry.size * _count_upto(entry, data, field, last)]


# --- rebuilding -------------------------------------------------------------------------------------------------------


def rebuilt(file: ReadableFile, metadata: RemoteLogSegmentMetadata, *, interval_bytes: int) -> tuple[bytes, bytes]:
    """(offset index, time index) from the bytes of a segment, as the broker writes them.

    Errors  RemoteStorageError if the bytes are not the batches of this segment; those of the file
    """
    offsets, times = bytearray(), bytearray()
    indexed_position, indexed_timestamp = 0, -1
    timestamp, timestamp_offset, last_offset = -1, 0, metadata.start_offset - 1

    def add_time_entry() -> None:
        nonlocal indexed_timestamp
        if timestamp > indexed_timestamp:
            times.extend(TIME_ENTRY.pack(timestamp, timestamp_offset))
            indexed_timestamp = timestamp

    reader = BatchReader(file)
    for batch in reader:
        position = reader.position
        if not last_offset < batch.base_offset <= batch.last_offset <= metadata.end_offset:
            raise RemoteStorageError(
                f"the segment has a batch from {batch.base_offset} to {batch.last_offset} at {position}, after"
                f" offset {last_offset}; it should have {metadata.start_offset} to {metadata.end_offset}"
            )
        last_offset = batch.last_offset
        relative_offset = last_offset - metadata.start_offset
        if batch.max_timestamp > timestamp:
            timestamp, timestamp_offset = batch.max_timestamp, relative_offset
        if position - indexed_position > interval_bytes:
            offsets.extend(OFFSET_ENTRY.pack(relative_offset, position))
            add_time_entry()
            indexed_position = position
    if reader.position != metadata.segment_size_in_bytes:
        raise RemoteStorageError(f"there is no whole batch at {reader.position}: {reader.error or 'the segment ends'}")
    add_time_entry()
    return bytes(offsets), bytes(times)
