"""Reads the records of a piece of a remote segment, straight from the store.

Every batch is checked before one of its records becomes a row: its header, its CRC, and its place among the others.
The CRC does not cover a batch's base_offset, so that is judged by its neighbours: a batch that begins before the one in
front of it ends, or ends behind its segment, is damaged. Offsets may be missing between two batches (topics that were
compacted before they were tiered have such gaps), but a bit that flips makes a gap too. So one more batch is looked at,
even behind the piece's end, after a gap and after the first batch of a piece that begins inside of its segment: it
tells the one from the other. Where the batch in front of the gap is the first that was read, the piece is read again
from the segment's beginning.

Bound  two ranges of `chunk_bytes`, the rows of one, and one batch of MAX_DECOMPRESSED_BYTES
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa

from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import DamagedObject, KbrokerSourceError, segment_error, told_by_store
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.ranges import read_ranges
from kbroker.tiered.api import RemoteStorageError, RemoteStorageManager
from wire.errors import Malformed
from wire.record_batch import HEADER_SIZE, MAX_DECOMPRESSED_BYTES, RecordBatch

DEFAULT_CHUNK_BYTES: Final = 8 << 20
MAX_BATCH_BYTES: Final = MAX_DECOMPRESSED_BYTES + HEADER_SIZE


def is_visible(batch: RecordBatch) -> bool:
    """Whether a batch's records are rows. Markers are none; records of aborted transactions will not be either."""
    return not batch.is_control


def read_segment(
    storage: RemoteStorageManager,
    piece: SegmentPiece,
    columns: Sequence[str] = COLUMNS,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    visible: Callable[[RecordBatch], bool] = is_visible,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. What an error names as its offset is of no row yet.

    Errors  MissingObject, StoreUnavailable, DamagedObject, UnknownCodec, UnrepresentableRecord
    """
    return _SegmentReader(storage, piece, columns, chunk_bytes, visible).rows()


class _Doubtful(Exception):
    """Only what lies before the piece's first batch can tell whether that batch is what it was."""


class _SegmentReader:
    """Reads one piece.

    Shape  _expected is the offset that comes next, None before the first batch of a piece inside of a segment
    Note   _is_second: what comes is the second batch of such a piece; _is_gap: offsets are missing in front of the last
           batch; nothing has confirmed yet that the last batch is what it was then. Rows below the offset _given have
           been given
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        piece: SegmentPiece,
        columns: Sequence[str],
        chunk_bytes: int,
        visible: Callable[[RecordBatch], bool],
    ) -> None:
        self._storage = storage
        self._piece = piece
        self._columns = columns
        self._chunk_bytes = chunk_bytes
        self._visible = visible
        self._rows = RowsBuilder(
            *(piece.topic_id_partition.topic, piece.topic_id_partition.partition),
            columns,
            start_offset=piece.start_offset,
            end_offset=piece.end_offset,
            error_at=self._error,
            rows_bytes=chunk_bytes,
        )
        self._expected = None if piece.start_position else piece.segment.start_offset
        self._given = piece.start_offset
        self._is_second = False
        self._is_gap = False

    def rows(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read()
        except _Doubtful:
            # Had a damaged batch given rows already, it would be met on the way and end the task.
            again = replace(self._piece, start_position=0, start_offset=self._given)
            yield from _SegmentReader(self._storage, again, self._columns, self._chunk_bytes, self._visible).rows()

    def _read(self) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        held: list[bytes] = []
        size, wanted, position = 0, HEADER_SIZE, piece.start_position  # of what is held; position is its first byte's
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
            raise self._error(*told_by_store(error)) from error
        yield from self._give()
        if size:
            raise self._error(DamagedObject, f"the segment ends inside of a batch that begins at byte {position}")
        is_confirmed = not self._is_second or self._expected == piece.segment.end_offset + 1
        if piece.start_position and not ((self._expected or 0) >= piece.end_offset and is_confirmed):
            raise _Doubtful

    def _give(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows.take()
        self._given = max(self._given, min(self._expected or 0, self._piece.end_offset))

    def _blocks(self) -> Generator[bytes]:
        segment, start = self._piece.segment, self._piece.start_position
        return read_ranges(self._storage, segment, start, self._piece.end_position, chunk_bytes=self._chunk_bytes)

    @property
    def _is_done(self) -> bool:
        """Whether no batch is needed any more, neither for its records nor to confirm one."""
        is_open = self._is_gap or self._is_second
        return self._expected is not None and self._expected >= self._piece.end_offset and not is_open

    def _take(self, data: bytes, at: int, position: int) -> tuple[int, int]:
        """Take batches from `at` on, those that are whole: where they end, and how many bytes it needs to go on there;
        0 if it is only that there are rows enough.
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
            if batch.base_offset < self._piece.end_offset and self._visible(batch):
                self._rows.add(batch)
            at += batch.size
        return at, HEADER_SIZE

    def _check_size(self, batch: RecordBatch, position: int) -> None:
        """Before memory is taken for it."""
        left = self._piece.segment.segment_size_in_bytes - position
        if batch.size > min(left, MAX_BATCH_BYTES):
            what = f"the batch at byte {position} has {batch.size} bytes, and there are {left}"
            raise self._error(DamagedObject, what)

    def _check_place(self, batch: RecordBatch, position: int) -> None:
        """Errors: DamagedObject, _Doubtful."""
        expected, segment = self._expected, self._piece.segment
        if expected is None:
            if batch.base_offset > self._piece.start_offset:
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
                f"the batch at byte {position} says that it has the offsets {batch.base_offset} to {batch.last_offset},"
                f" where those from {first} to {segment.end_offset} are expected",
            )
        self._is_gap = batch.base_offset > expected
        self._is_second = self._expected is None
        self._expected = batch.next_offset

    def _error(self, kind: type[KbrokerSourceError], what: str, offset: int | None = None) -> KbrokerSourceError:
        if offset is None:
            offset = min(max(self._given, self._expected or 0), self._piece.end_offset)
        return segment_error(kind, what, self._piece.segment, self._storage, offset=offset)
