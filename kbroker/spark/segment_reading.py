"""Reads the records of a piece of a remote segment directly from the store.

Every batch is checked before its records become rows: its header, its CRC, and its position among the other batches.
The CRC does not cover base_offset, so the reader compares it with the neighbours: a batch that begins before the end of
the previous batch, or ends after its segment, is damaged. A gap between two batches is either legal (the topic was
compacted before it was tiered) or the result of a flipped bit. To tell these apart, the reader checks one more batch
after a gap, and after the first batch of a piece that begins inside its segment, even if that batch is after the piece.
If the batch before the gap is the first one that was read, the piece is read again from the segment's beginning.

Bound  two ranges of `chunk_bytes`, the rows of one, and one batch of MAX_DECOMPRESSED_BYTES
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import DamagedObject, KbrokerSourceError, error_of_store, segment_error
from kbroker.spark.pieces import SegmentPiece
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteObjectDamaged, RemoteStorageError, RemoteStorageManager
from wire.batch_header import HEADER_SIZE
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch

DEFAULT_CHUNK_BYTES: Final = 8 << 20
STEP_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = MAX_DECOMPRESSED_BYTES + HEADER_SIZE


def read_segment(
    storage: RemoteStorageManager,
    piece: SegmentPiece,
    columns: Sequence[str] = COLUMNS,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. No row at or after the offset of an error has been yielded.

    Errors  MissingObject, StoreUnavailable, DamagedObject, UnknownCodec, UnrepresentableRecord
    """
    return _SegmentReader(storage, piece, columns, chunk_bytes).rows()


class _Doubtful(Exception):
    """The piece's first batch may be damaged; only the batches before the piece can tell."""


@dataclass
class _SegmentReader:
    """Reads one piece.

    Shape  _expected is the next offset, None before the first batch of a piece that begins inside its segment
    Note   _is_second: the next batch is the second one of such a piece; _is_gap: offsets are missing before the last
           batch. In both cases no other batch has confirmed the last one yet. Rows below the offset _given have been
           yielded
    """

    storage: RemoteStorageManager
    piece: SegmentPiece
    columns: Sequence[str]
    chunk_bytes: int

    def __post_init__(self) -> None:
        self._rows = RowsBuilder(self.piece, self.columns, error_at=self._error, rows_bytes=self.chunk_bytes)
        self._expected = None if self.piece.start_position else self.piece.segment.start_offset
        self._given = self.piece.start_offset
        self._is_second = self._is_gap = False

    def rows(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read()
        except _Doubtful:
            # If a damaged batch has already produced rows, this reads it again and the task fails.
            again = replace(self.piece, start_position=0, start_offset=self._given)
            yield from _SegmentReader(self.storage, again, self.columns, self.chunk_bytes).rows()

    def _read(self) -> Iterator[pa.RecordBatch]:
        piece = self.piece
        held: list[bytes] = []
        size, wanted, position = 0, HEADER_SIZE, piece.start_position  # size and position of what is held
        try:
            with closing(self._blocks()) as blocks:
                for block in blocks:
                    held.append(block)
                    size += len(block)
                    if size < wanted:
                        continue
                    data = held[0] if len(held) == 1 else b"".join(held)
                    taken = wanted = 0
                    while not wanted:
                        taken, wanted = self._take(data, taken, position)
                        if self._rows.is_full or self._is_done:
                            yield from self._give()
                    if self._is_done:
                        return
                    yield from self._give()
                    held = [data[taken:]]
                    size -= taken
                    position += taken
        except RemoteStorageError as error:
            yield from self._give()
            raise self._error(*error_of_store(error)) from error
        yield from self._give()
        if size:
            raise self._error(DamagedObject, f"the segment ends inside the batch that begins at byte {position}")
        is_confirmed = not self._is_second or self._expected == piece.segment.end_offset + 1
        if piece.start_position and not ((self._expected or 0) >= piece.end_offset and is_confirmed):
            raise _Doubtful

    def _give(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows.take()
        self._given = max(self._given, min(self._expected or 0, self.piece.end_offset))

    def _blocks(self) -> Generator[bytes]:
        segment, start = self.piece.segment, self.piece.start_position
        return read_ranges(self.storage, segment, start, self.piece.end_position, chunk_bytes=self.chunk_bytes)

    @property
    def _is_done(self) -> bool:
        """Whether no further batch is needed, neither for its records nor to confirm another one."""
        is_open = self._is_gap or self._is_second
        return self._expected is not None and self._expected >= self.piece.end_offset and not is_open

    def _take(self, data: bytes, at: int, position: int) -> tuple[int, int]:
        """Take the complete batches from `at` on. Returns where they end, and how many bytes the next one needs; 0 if
        there are enough rows.
        """
        while not self._is_done:
            if self._rows.is_full:
                return at, 0
            if len(data) - at < HEADER_SIZE:
                return at, HEADER_SIZE
            try:
                batch = RecordBatch(data, at)
            except Malformed as error:
                raise self._error(DamagedObject, f"no batch begins at byte {position + at}: {error}") from error
            self._check_size(batch, position + at)
            if not batch.is_whole:
                return at, batch.size
            if not batch.crc_is_valid():
                raise self._error(DamagedObject, f"the CRC of the batch at byte {position + at} is wrong")
            self._check_place(batch, position + at)
            if batch.base_offset < self.piece.end_offset and not batch.is_control:
                self._rows.add(batch)
            at += batch.size
        return at, HEADER_SIZE

    def _check_size(self, batch: RecordBatch, position: int) -> None:
        """Checks the size before memory is allocated for the batch."""
        left = self.piece.segment.segment_size_in_bytes - position
        if batch.size > min(left, MAX_BATCH_BYTES):
            what = f"the batch at byte {position} has {batch.size} bytes, but there are {left}"
            raise self._error(DamagedObject, what)

    def _check_place(self, batch: RecordBatch, position: int) -> None:
        """Errors: DamagedObject, _Doubtful."""
        expected, segment = self._expected, self.piece.segment
        if expected is None:
            if batch.base_offset > self.piece.start_offset:
                raise _Doubtful
            expected = batch.base_offset
            first = segment.start_offset
        else:
            first = expected
            if self._is_second and batch.base_offset > expected:
                raise _Doubtful
        if not first <= batch.base_offset <= batch.last_offset <= segment.end_offset:
            raise self._error(
                DamagedObject,
                f"the batch at byte {position} claims the offsets {batch.base_offset} to {batch.last_offset},"
                f" where offsets from {first} to {segment.end_offset} are expected",
            )
        self._is_gap = batch.base_offset > expected
        self._is_second = self._expected is None
        self._expected = batch.next_offset

    def _error(self, kind: type[KbrokerSourceError], what: str, offset: int | None = None) -> KbrokerSourceError:
        if offset is None:
            offset = min(max(self._given, self._expected or 0), self.piece.end_offset)
        return segment_error(kind, what, self.piece.segment, self.storage, offset=offset)


def read_ranges(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    expected_end: int | None,
    *,
    chunk_bytes: int,
) -> Generator[bytes]:
    """The bytes from `start` to the segment's end, in blocks of at most STEP_BYTES. Bytes after `expected_end` are not
    read ahead.

    Each range of `chunk_bytes` is one request to the store and is read completely before the caller gets its first
    block, so no connection stays open while Spark does something else. The next range is read ahead. Blocks of 1 MiB
    stay in the processor's caches and are reused by the allocator; larger ones are returned to the kernel each time.
    Errors  RemoteStorageError after the manager's retries; RemoteObjectDamaged for an object that is shorter than its
            segment
    """
    size = segment.segment_size_in_bytes
    expected = size if expected_end is None else min(max(expected_end, start), size)
    bounds = []
    for low, high in ((start, expected), (expected, size)):
        bounds += [(at, min(at + chunk_bytes, high)) for at in range(low, high, chunk_bytes)]
    with ThreadPoolExecutor(1, thread_name_prefix="kbroker-ahead") as pool:
        ahead = None
        for index, (at, end) in enumerate(bounds):
            blocks = _read(storage, segment, at, end) if ahead is None else ahead.result()
            ahead = None
            if index + 1 < len(bounds) and bounds[index + 1][1] <= expected:
                ahead = pool.submit(_read, storage, segment, *bounds[index + 1])
            blocks.reverse()
            while blocks:
                yield blocks.pop()  # frees the block when the caller is done


def _read(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int) -> list[bytes]:
    blocks: list[bytes] = []
    with closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
        at = start
        while at < end:
            block = stream.read(min(STEP_BYTES, end - at))
            if not block:
                raise RemoteObjectDamaged(f"the object ends at byte {at}, but its segment has at least {end} bytes")
            blocks.append(block)
            at += len(block)
    return blocks
