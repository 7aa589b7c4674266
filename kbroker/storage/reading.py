"""Find the bytes that a fetch returns.

A fetch gets a range of one segment's file: as many whole batches as fit, starting with the one that holds the requested
offset. This module reads only the headers that it needs to end at a batch boundary.

There are three ways to find the range, the most frequent first. For a consumer at the tail, `Tail` has the positions of
the last few hundred batches of the active segment in two arrays. For a consumer that continues where its last fetch
ended, a small table has the position. All other reads use the sparse index.

Reads may run in threads while one writer appends. So a reader takes each object once: the end of the log first, the
tail as one object whose arrays only grow, and the segments as one tuple.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, TypeAlias

from kbroker.runtime.ports import File
from kbroker.storage.files import FileRange
from kbroker.storage.segment import Segment
from kbroker.storage.segments import SegmentList
from wire.batch_header import HEADER_SIZE, BatchHeader
from wire.record_batch import RecordBatch

TAIL_BATCHES: Final = 256
REMEMBERED_READS: Final = 8

Place: TypeAlias = tuple[int, int]
"""(base offset of a segment, position in its file)."""


@dataclass(slots=True, eq=False)
class LogSlice:
    """The result of a read.

    Shape  records is a range of whole batches, None if there is nothing to read; place is that of the first batch;
           size is the bytes of the records; next_offset is the offset after them, -1 if it was not looked up
    """

    records: FileRange | None
    place: Place
    size: int = 0
    next_offset: int = -1

    def read(self) -> bytes:
        return self.records.read() if self.records is not None else b""


class Tail:
    """The positions of the newest batches of the active segment.

    Shape      batch i has the offsets from ends[i-1] (start_offset for the first) up to ends[i] and lies between
               positions[i] and positions[i+1], so there is one more position than there are batches
    Invariant  the arrays only grow, positions before ends; to drop batches, make another Tail
    """

    __slots__ = ("ends", "positions", "segment", "start_offset")

    def __init__(self, segment: Segment, start_offset: int, position: int) -> None:
        self.segment = segment
        self.start_offset = start_offset
        self.ends = array("q")
        self.positions = array("q", (position,))

    def add(self, next_offset: int, end_position: int) -> None:
        self.positions.append(end_position)
        self.ends.append(next_offset)

    def place_of(self, end_offset: int) -> int:
        """The file position where the batches below `end_offset` end; `end_offset` is at least start_offset."""
        return self.positions[bisect_right(self.ends, end_offset)]

    def shortened(self) -> Tail:
        """A Tail with the newer half of the batches."""
        drop = len(self.ends) // 2
        tail = Tail(self.segment, self.ends[drop - 1], self.positions[drop])
        tail.ends = self.ends[drop:]
        tail.positions = self.positions[drop:]
        return tail

    def read(self, offset: int, max_bytes: int, end_offset: int, at_least_one_batch: bool) -> LogSlice:
        """The batches from `offset` on that end at or before `end_offset`; `offset` is at least start_offset."""
        ends, positions, segment = self.ends, self.positions, self.segment
        first = bisect_right(ends, offset)
        last = bisect_right(ends, end_offset)
        start = positions[first]
        if last > first:
            stop = positions[last]
            if stop - start > max_bytes:
                last = bisect_right(positions, start + max_bytes) - 1
                last = max(last, first + 1 if at_least_one_batch else first)
                stop = positions[last]
            if stop > start:
                records = FileRange(segment.files.open(segment.log_path), start, stop - start)
                return LogSlice(records, (segment.base_offset, start), stop - start, ends[last - 1])
        return LogSlice(None, (segment.base_offset, start))


class RecentReads(dict[int, tuple[Segment, int]]):
    """Where the last few reads of a log ended and may continue: offset -> (segment, position)."""

    def note(self, next_offset: int, segment: Segment, position: int) -> None:
        if len(self) >= REMEMBERED_READS:
            for offset in tuple(self)[: REMEMBERED_READS // 2]:
                self.pop(offset, None)
        self[next_offset] = (segment, position)


def end_of(segment: Segment, following: tuple[Segment, ...], end_offset: int) -> tuple[int, int]:
    """Where the batches below `end_offset` end in a segment, and the next offset (-1 if it was not looked up)."""
    at = following.index(segment)
    if at + 1 < len(following) and following[at + 1].base_offset <= end_offset:
        return segment.size, following[at + 1].base_offset
    found = segment.find(end_offset)
    if found is None:
        return segment.size, -1
    return found[0], end_offset


def border_before(segment: Segment, start: int, limit: int, stop: int, at_least_one_batch: bool) -> tuple[int, int]:
    border, next_offset = segment.position_before(limit, start=start)
    if border > start or not at_least_one_batch:
        return border, next_offset
    data = segment.open().file.pread(HEADER_SIZE, start)
    header = BatchHeader(data)
    return min(start + header.size, stop), header.next_offset


def first_at_or_after(segments: SegmentList, timestamp: int, start_offset: int) -> tuple[int, int, int] | None:
    """(offset, timestamp, leader_epoch) of the first record at or after `timestamp` and `start_offset`."""
    for segment in segments.from_offset(start_offset):
        segment.load_timestamps()
        if segment.max_timestamp >= timestamp:
            file = segment.open().file  # stays readable if retention removes the segment during the read
            for position, header in segment.batches_since(timestamp, start_offset):
                found = _first_record(file, position, header, timestamp, start_offset)
                if found is not None:
                    return found
    return None


def latest(segments: SegmentList) -> tuple[int, int, int] | None:
    """(offset, timestamp, leader_epoch) of the first record with the largest timestamp; None if no record has one."""
    best: Segment | None = None
    for segment in segments:
        segment.load_timestamps()
        if best is None or segment.max_timestamp > best.max_timestamp:
            best = segment
    if best is None or best.max_timestamp < 0:
        return None
    found = best.find(best.max_timestamp_offset)
    if found is None or found[1].max_timestamp != best.max_timestamp:
        # A damaged time index gave a wrong offset.
        found = best.find(best.max_timestamp_offset) if best.rebuild_indexes() else None
        if found is None:
            return None
    position, header = found
    return _first_record(best.open().file, position, header, header.max_timestamp, header.base_offset)


def _first_record(
    file: File, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int, int] | None:
    """(offset, timestamp, leader_epoch) of the batch's first record at or after `timestamp` and `start_offset`."""
    for record in RecordBatch(file.pread(header.size, position)).records():
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp, header.partition_leader_epoch
    return None
