"""Whole batches out of the pieces of a segment that are at hand.

A segment comes from the tier in chunks whose borders know nothing of batches. A `Window` is a row of neighbouring
chunks in memory; `take_batches` walks it from header to header, checks every batch that it gives, and says from where
on bytes are missing. Nothing is copied but the batches that lie across the border of two chunks.

What comes from a store is not trusted. Each batch has its CRC checked; what the CRC does not cover, the base_offset and
the leader epoch, has to fit what is known of the segment and the log. Offsets may be left out, as compaction does, but
then the batch behind the gap must be followed by one that fits.

Source  record batch, magic 2; lessons of others: a batch that reaches beyond a piece must not end the reading, a piece
        that came short must not count as one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from kbroker.runtime.ports import Buffer
from kbroker.storage.batches import CRC_START, FRAME_SIZE, HEADER, HEADER_SIZE, MAGIC, BatchHeader

_RUN_HEADER: Final = Struct(">qiibI2xi")
"""base_offset, length, partition_leader_epoch, magic, crc, (attributes,) last_offset_delta."""


class DamagedBatch(Exception):
    """What lies at `position` is not the batch that was written there.

    Units  position is in bytes from the segment's start; the damage lies within `size` bytes from there
    """

    def __init__(self, position: int, size: int, why: str) -> None:
        super().__init__(f"at position {position}: {why}")
        self.position = position
        self.size = size


class BytesMissing(Exception):
    """To go on, the window has to reach up to `end`, in bytes from the segment's start."""

    def __init__(self, end: int) -> None:
        super().__init__(f"bytes up to {end} are not at hand")
        self.end = end


class Window:
    """Neighbouring chunks of one segment.

    Shape  chunks are of one size, but for the last one of a segment, which is shorter
    Units  positions are bytes from the segment's start; segment_size those of the whole segment, last_offset its last
    """

    __slots__ = ("_chunks", "chunk_bytes", "end", "last_offset", "segment_size", "start")

    def __init__(self, first_chunk: int, chunk_bytes: int, *, segment_size: int, last_offset: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.last_offset = last_offset
        self.start = self.end = first_chunk * chunk_bytes
        self.segment_size = segment_size
        self._chunks: list[memoryview] = []

    def add(self, chunk: memoryview) -> None:
        """The chunk behind the last one."""
        assert self.end == self.start + len(self._chunks) * self.chunk_bytes, "nothing follows a short chunk"
        self._chunks.append(chunk)
        self.end += len(chunk)

    @property
    def next_chunk(self) -> int:
        """The number of the chunk that would be added next."""
        return self.start // self.chunk_bytes + len(self._chunks)

    def chunk_at(self, position: int) -> tuple[memoryview, int]:
        """The chunk in which a position lies, and where it begins."""
        at = (position - self.start) // self.chunk_bytes
        return self._chunks[at], self.start + at * self.chunk_bytes

    def view(self, position: int, size: int) -> memoryview:
        """Bytes that are at hand, as one piece. Errors: BytesMissing."""
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
        """The header of the batch that begins at a position.

        Errors  BytesMissing; DamagedBatch for what is none, or does not fit into the segment
        """
        if position + HEADER_SIZE > self.segment_size:
            raise DamagedBatch(position, self.segment_size - position, "the segment ends within a header")
        header = BatchHeader._make(HEADER.unpack(self.view(position, HEADER_SIZE)))
        if not header.is_plausible:
            raise DamagedBatch(position, HEADER_SIZE, "no header of a batch")
        if position + header.size > self.segment_size:
            raise DamagedBatch(position, HEADER_SIZE, f"a batch of {header.size} bytes reaches beyond the segment")
        if header.base_offset < 0 or header.last_offset > self.last_offset:
            why = f"offsets {header.base_offset} to {header.last_offset} in a segment up to {self.last_offset}"
            raise DamagedBatch(position, HEADER_SIZE, why)
        return header

    def check_gap(self, position: int, header: BatchHeader) -> None:
        """Whether the batch behind one that leaves offsets out fits it. Errors: BytesMissing, DamagedBatch."""
        behind = position + header.size
        if behind < self.segment_size and (following := self.header(behind).base_offset) < header.next_offset:
            why = f"offset {header.base_offset} leaves some out, and {following} follows"
            raise DamagedBatch(position, header.size + HEADER_SIZE, why)

    def batch(self, position: int, header: BatchHeader) -> memoryview:
        """The whole batch with that header. Errors: BytesMissing, DamagedBatch."""
        data = self.view(position, header.size)
        if crc32c(data[CRC_START:]) != header.crc:
            raise DamagedBatch(position, header.size, f"the CRC of the batch at offset {header.base_offset} is wrong")
        return data

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from one on, to the segment's end. Errors: BytesMissing, DamagedBatch."""
        expected = -1
        while position < self.segment_size:
            header = self.header(position)
            if header.base_offset < expected:
                raise DamagedBatch(position, HEADER_SIZE, f"offset {header.base_offset} comes after {expected - 1}")
            yield position, header
            position += header.size
            expected = header.next_offset


class Taken(NamedTuple):
    """Batches that were taken, and where to go on.

    Shape  pieces, one behind the other, are the batches; next_offset is -1 while nothing was taken
    Units  position is that of the batch behind the last one that was taken or passed over
    Note   is_full: the next batch does not fit; ends: it is at or beyond the end that was asked for. Otherwise bytes
           are missing, or the segment has ended
    """

    pieces: Sequence[Buffer]
    size: int
    position: int
    next_offset: int
    is_full: bool = False
    ends: bool = False


class Wanted(NamedTuple):
    """What is wanted of a segment: the batches from the one at or behind `offset` on that begin below `end_offset`, at
    most max_bytes of them unless the first one alone is larger and at_least_one_batch. All were written in one epoch.
    """

    offset: int
    end_offset: int
    leader_epoch: int
    max_bytes: int
    at_least_one_batch: bool = True


class Start(NamedTuple):
    """Where to begin: at the batch at `position`.

    Shape  base_offset is what that batch begins with, unless offsets are left out; last_offset what it ends with, as
           an index says; -1 where that is not known
    """

    position: int
    base_offset: int = -1
    last_offset: int = -1

    def check(self, window: Window) -> None:
        """Errors: DamagedBatch where an index points to another batch, or to none; BytesMissing."""
        if self.last_offset >= 0 and (found := window.header(self.position).last_offset) != self.last_offset:
            why = f"a batch that ends with offset {found}, not {self.last_offset} as the index says"
            raise DamagedBatch(self.position, HEADER_SIZE, why)


def take_batches(window: Window, start: Start, wanted: Wanted) -> Taken:
    """What is wanted, as far as it is at hand. Bytes that are missing end the answer once there is a batch in it.

    Errors  BytesMissing where they are missing before that; DamagedBatch where the first batch is damaged: the good
            ones before a damaged one are given
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
    """The batch at `position`, and those behind it that lie in the same chunk and fit: (them, the position and the
    offset behind them).

    This loop runs for every batch that is read: it takes no more of a header than it needs.
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
            break  # the one who called looks at it more closely
        at = behind
        next_offset += last_offset_delta + 1
    return chunk[start:at], begins + at, next_offset


class Probe(NamedTuple):
    """How far a search came. Shape: batch is what was found, else None; ends: there is none in the segment."""

    position: int
    batch: memoryview | None = None
    ends: bool = False


def find_batch(window: Window, start: Start, *, timestamp: int, from_offset: int, end_offset: int) -> Probe:
    """The first batch from `start` on that may have a record at least that late in [from_offset, end_offset), by the
    headers alone (KAFKA-16548).

    Errors  BytesMissing where there is not even one header to go by; DamagedBatch
    """
    position = first = start.position
    try:
        for at, header in window.headers(position):
            position = at
            if header.base_offset >= end_offset:
                return Probe(at, ends=True)
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                return Probe(at, window.batch(at, header))
            position = at + header.size
    except BytesMissing:
        if position == first:
            raise
        return Probe(position)
    return Probe(position, ends=True)


def largest_timestamp(window: Window, start: Start, *, from_offset: int, end_offset: int) -> tuple[int, Probe]:
    """The largest timestamp of the batches at hand that reach into [from_offset, end_offset), -1 for none.

    Errors  as `find_batch`
    """
    position = first = start.position
    largest = -1
    try:
        for at, header in window.headers(position):
            position = at
            if header.base_offset >= end_offset:
                return largest, Probe(at, ends=True)
            if header.last_offset >= from_offset:
                largest = max(largest, header.max_timestamp)
            position = at + header.size
    except BytesMissing:
        if position == first:
            raise
        return largest, Probe(position)
    return largest, Probe(position, ends=True)
