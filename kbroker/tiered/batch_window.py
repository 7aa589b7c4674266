"""Extracts whole batches from the parts of a segment that are in memory.

A segment comes from the tier in chunks whose boundaries are independent of batches. A `Window` is a row of adjacent
chunks in memory. `take_batches` walks it from header to header, checks each batch that it returns, and reports where
bytes are missing. Only batches that span two chunks are copied.

Data from a store are not trusted. The CRC of each batch is checked. Base offset and leader epoch, which the CRC does
not cover, have to fit the metadata of the segment and the log. Offsets may be missing, as after compaction; then the
batch after the gap must be followed by one that fits.

Source  record batch, magic 2; known bugs elsewhere: a batch that spans two pieces must not end the reading, a short
        piece must not count as a whole one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.runtime.ports import Buffer
from kbroker.tiered.api import RemoteLogSegmentMetadata
from wire.batch_header import CRC_START, FRAME_SIZE, HEADER_SIZE, MAGIC, BatchHeader, header_struct
from wire.crc32c import crc32c

_RUN_HEADER: Final = header_struct(
    base_offset="q", batch_length="i", partition_leader_epoch="i", magic="b", crc="I", last_offset_delta="i"
)


class DamagedBatch(Exception):
    """The bytes at `position` are not the batch that was written there.

    Units  position is in bytes from the segment's start; the damage is within `size` bytes from there
    """

    def __init__(self, position: int, size: int, why: str) -> None:
        super().__init__(f"at position {position}: {why}")
        self.position = position
        self.size = size


class BytesMissing(Exception):
    """The window has to be extended up to `end`, in bytes from the segment's start."""

    def __init__(self, end: int) -> None:
        super().__init__(f"bytes up to {end} are not at hand")
        self.end = end


class Window:
    """Adjacent chunks of one segment.

    Shape  chunks have one size, except for a segment's last one, which is shorter
    Units  positions are bytes from the segment's start; segment_size is the size of the whole segment in bytes,
           last_offset its last offset
    """

    __slots__ = ("_chunks", "chunk_bytes", "end", "last_offset", "segment_size", "start")

    def __init__(self, segment: RemoteLogSegmentMetadata, first_chunk: int, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.start = self.end = first_chunk * chunk_bytes
        self.segment_size, self.last_offset = segment.segment_size_in_bytes, segment.end_offset
        self._chunks: list[memoryview] = []

    def add(self, chunk: memoryview) -> None:
        """Append the next chunk."""
        assert self.end == self.start + len(self._chunks) * self.chunk_bytes, "nothing follows a short chunk"
        self._chunks.append(chunk)
        self.end += len(chunk)

    @property
    def next_chunk(self) -> int:
        """The number of the next chunk to add."""
        return self.start // self.chunk_bytes + len(self._chunks)

    def chunk_at(self, position: int) -> tuple[memoryview, int]:
        """The chunk that contains a position, and the position of the chunk's start."""
        at = (position - self.start) // self.chunk_bytes
        return self._chunks[at], self.start + at * self.chunk_bytes

    def view(self, position: int, size: int) -> memoryview:
        """Available bytes as one piece. Errors: BytesMissing."""
        end = position + size
        if end > self.end:
            raise BytesMissing(end)
        chunk, begins = self.chunk_at(position)
        if end <= begins + len(chunk):
            return chunk[position - begins : end - begins]
        joined = bytearray()
        while position < end:
            chunk, begins = self.chunk_at(position)
            joined += chunk[position - begins : end - begins]
            position = begins + len(chunk)
        return memoryview(joined)

    def header(self, position: int) -> BatchHeader:
        """The header of the batch that starts at a position.

        Errors  BytesMissing; DamagedBatch if it is not a header, or does not fit into the segment
        """
        if position + HEADER_SIZE > self.segment_size:
            raise DamagedBatch(position, self.segment_size - position, "the segment ends within a header")
        header = BatchHeader(self.view(position, HEADER_SIZE))
        if not header.is_plausible:
            raise DamagedBatch(position, HEADER_SIZE, "no header of a batch")
        if position + header.size > self.segment_size:
            raise DamagedBatch(position, HEADER_SIZE, f"a batch of {header.size} bytes reaches beyond the segment")
        if header.base_offset < 0 or header.last_offset > self.last_offset:
            why = f"offsets {header.base_offset} to {header.last_offset} in a segment up to {self.last_offset}"
            raise DamagedBatch(position, HEADER_SIZE, why)
        return header

    def check_gap(self, position: int, header: BatchHeader) -> None:
        """Check that the batch after one that skips offsets fits it. Errors: BytesMissing, DamagedBatch."""
        behind = position + header.size
        if behind < self.segment_size and (following := self.header(behind).base_offset) < header.next_offset:
            why = f"offset {header.base_offset} leaves some out, and {following} follows"
            raise DamagedBatch(position, header.size + HEADER_SIZE, why)

    def batch(self, position: int, header: BatchHeader) -> memoryview:
        """The whole batch with this header. Errors: BytesMissing, DamagedBatch."""
        data = self.view(position, header.size)
        if crc32c(data[CRC_START:]) != header.crc:
            raise DamagedBatch(position, header.size, f"the CRC of the batch at offset {header.base_offset} is wrong")
        return data

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from a position to the segment's end. Errors: BytesMissing, DamagedBatch."""
        expected = -1
        while position < self.segment_size:
            header = self.header(position)
            if header.base_offset < expected:
                raise DamagedBatch(position, HEADER_SIZE, f"offset {header.base_offset} comes after {expected - 1}")
            yield position, header
            position += header.size
            expected = header.next_offset


class Taken(NamedTuple):
    """Batches that were taken, and where to continue.

    Shape  the concatenated pieces are the batches; next_offset is -1 if nothing was taken
    Units  position is that of the batch after the last one that was taken or skipped
    Note   is_full: the next batch does not fit; ends: it is at or beyond end_offset. Otherwise bytes are missing, or
           the segment has ended
    """

    pieces: Sequence[Buffer]
    size: int
    position: int
    next_offset: int
    is_full: bool = False
    ends: bool = False


class Wanted(NamedTuple):
    """The requested part of a segment: batches from the one that contains `offset`, or the next one, that start below
    `end_offset`; at most max_bytes, unless the first batch is larger and at_least_one_batch is set. All batches must
    have the given leader epoch.
    """

    offset: int
    end_offset: int
    leader_epoch: int
    max_bytes: int
    at_least_one_batch: bool = True


class Start(NamedTuple):
    """Where to start: at the batch at `position`.

    Shape  base_offset is the first offset of that batch, unless offsets are missing; last_offset is its last offset
           according to an index; -1 if unknown
    """

    position: int
    base_offset: int = -1
    last_offset: int = -1

    def check(self, window: Window) -> None:
        """Errors: DamagedBatch if an index points to another batch, or to none; BytesMissing."""
        if self.last_offset >= 0 and (found := window.header(self.position).last_offset) != self.last_offset:
            why = f"a batch that ends with offset {found}, not {self.last_offset} as the index says"
            raise DamagedBatch(self.position, HEADER_SIZE, why)


def take_batches(window: Window, start: Start, wanted: Wanted) -> Taken:
    """The wanted batches, as far as their bytes are available. Missing bytes end the result once it has a batch.

    Errors  BytesMissing if bytes of the first batch are missing; DamagedBatch if the first batch is damaged. Good
            batches before a damaged one are returned
    """
    pieces: list[memoryview] = []
    size, next_offset = 0, -1
    position, expected = start.position, start.base_offset
    try:
        start.check(window)
        while position < window.segment_size:
            header = window.header(position)
            base_offset = header.base_offset
            if expected >= 0 and base_offset != expected:
                if base_offset < expected:
                    raise DamagedBatch(position, HEADER_SIZE, f"offset {base_offset} comes after {expected - 1}")
                window.check_gap(position, header)
            if base_offset >= wanted.end_offset:
                return Taken(pieces, size, position, next_offset, ends=True)
            if header.next_offset <= wanted.offset:
                position += header.size
                expected = header.next_offset
                continue
            if header.partition_leader_epoch != wanted.leader_epoch:
                why = f"leader epoch {header.partition_leader_epoch} at offset {base_offset}, not {wanted.leader_epoch}"
                raise DamagedBatch(position, HEADER_SIZE, why)
            room = wanted.max_bytes - size
            if header.size > room and (size or not wanted.at_least_one_batch):
                return Taken(pieces, size, position, next_offset, is_full=True)
            run, position, expected = _take_run(window, position, header, wanted, room)
            pieces.append(run)
            size += len(run)
            next_offset = expected
    except (BytesMissing, DamagedBatch):
        if not size:
            raise
    return Taken(pieces, size, position, next_offset)


def _take_run(
    window: Window, position: int, header: BatchHeader, wanted: Wanted, max_bytes: int
) -> tuple[memoryview, int, int]:
    """The batch at `position` and the following ones in the same chunk that fit. Returns (bytes, next position, next
    offset).

    This loop runs for every batch that is read, so it unpacks no more of a header than it needs.
    """
    first = window.batch(position, header)
    chunk, begins = window.chunk_at(position)
    start = position - begins
    at, next_offset = start + header.size, header.next_offset
    if at > len(chunk):
        return first, begins + at, next_offset
    unpack = _RUN_HEADER.unpack_from
    limit = min(len(chunk), start + max_bytes)
    last_header = limit - HEADER_SIZE
    end_offset, leader_epoch = min(wanted.end_offset, window.last_offset + 1), wanted.leader_epoch
    while at <= last_header:
        base_offset, length, epoch, magic, crc, last_offset_delta = unpack(chunk, at)
        behind = at + length + FRAME_SIZE
        if (
            behind > limit
            or behind < at + HEADER_SIZE
            or base_offset != next_offset
            or epoch != leader_epoch
            or magic != MAGIC
            or last_offset_delta < 0
            or next_offset + last_offset_delta >= end_offset
            or crc32c(chunk[at + CRC_START : behind]) != crc
        ):
            break  # the caller checks this batch in detail
        at = behind
        next_offset += last_offset_delta + 1
    return chunk[start:at], begins + at, next_offset


class Probe(NamedTuple):
    """The progress of a search.

    Shape  batch is the found one, or None; ends: the segment has no match; largest is the largest timestamp of the
           batches that were passed over, -1 for none
    """

    position: int
    batch: memoryview | None = None
    ends: bool = False
    largest: int = -1


def find_batch(window: Window, start: Start, *, timestamp: int, from_offset: int, end_offset: int) -> Probe:
    """The first batch from `start` on that may have a record with at least this timestamp in [from_offset, end_offset),
    from the headers alone (KAFKA-16548).

    Errors  BytesMissing if not even one header is available; DamagedBatch
    """
    position = first = start.position
    largest = -1
    try:
        for at, header in window.headers(position):
            position = at
            if header.base_offset >= end_offset:
                break
            if header.last_offset >= from_offset:
                if header.max_timestamp >= timestamp:
                    return Probe(at, window.batch(at, header), largest=largest)
                largest = max(largest, header.max_timestamp)
            position = at + header.size
    except BytesMissing:
        if position == first:
            raise
        return Probe(position, largest=largest)
    return Probe(position, ends=True, largest=largest)
