"""Reads the records of a piece of a remote segment directly from the store.

kbroker.spark.segment_walk checks every batch before its records become rows. If it cannot tell whether the first batch
of a piece that begins inside its segment is damaged, the piece is read again from the segment's beginning.

Bound  two ranges of `chunk_bytes`, ROWS_BYTES of rows, and one batch of MAX_DECOMPRESSED_BYTES
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
from kbroker.spark.segment_walk import Doubtful, SegmentWalk
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteObjectDamaged, RemoteStorageError, RemoteStorageManager
from wire.batch_header import HEADER_SIZE

DEFAULT_CHUNK_BYTES: Final = 8 << 20
ROWS_BYTES: Final = 2 << 20


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


@dataclass
class _SegmentReader:
    """Reads one piece.

    Note   rows below the offset _given have been yielded
    """

    storage: RemoteStorageManager
    piece: SegmentPiece
    columns: Sequence[str]
    chunk_bytes: int

    def __post_init__(self) -> None:
        rows_bytes = min(ROWS_BYTES, self.chunk_bytes)
        self._rows = RowsBuilder(self.piece, self.columns, error_at=self._error, rows_bytes=rows_bytes)
        self._walk = SegmentWalk(self.piece, self._rows.parts, self._error)
        self._given = self.piece.start_offset

    def rows(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read()
        except Doubtful:
            # If a damaged batch has already produced rows, this reads it again and the task fails.
            again = replace(self.piece, start_position=0, start_offset=self._given)
            yield from _SegmentReader(self.storage, again, self.columns, self.chunk_bytes).rows()

    def _read(self) -> Iterator[pa.RecordBatch]:
        piece = self.piece
        walk, rows = self._walk, self._rows
        held: list[bytes] = []  # the beginning of a batch that continues in the next block
        size, wanted, position = 0, HEADER_SIZE, piece.start_position  # size and position of what is held
        try:
            with closing(self._blocks()) as blocks:
                for block in blocks:
                    at = 0
                    while at < len(block):
                        if held:
                            held.append(block[at : at + wanted - size])
                            at += len(held[-1])
                            size += len(held[-1])
                            if size < wanted:
                                break
                            data = b"".join(held)
                            taken, wanted = walk.take(data, 0, position)
                            rest = data[taken:]
                            position += taken
                        else:
                            taken, wanted = walk.take(block, at, position)
                            rest = block[taken:] if wanted else b""
                            position += taken - at
                            at = len(block) if wanted else taken
                        held, size = [rest] if rest else [], len(rest)
                        if rows.is_full or walk.is_done:
                            yield from self._give()
                        if walk.is_done:
                            return
                    yield from self._give()
        except RemoteStorageError as error:
            yield from self._give()
            raise self._error(*error_of_store(error)) from error
        yield from self._give()
        if size:
            raise self._error(DamagedObject, f"the segment ends inside the batch that begins at byte {position}")
        if piece.start_position and not self._walk.is_confirmed:
            raise Doubtful

    def _give(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows.take()
        self._given = max(self._given, min(self._walk.expected or 0, self.piece.end_offset))

    def _blocks(self) -> Generator[bytes]:
        segment, start = self.piece.segment, self.piece.start_position
        return read_ranges(self.storage, segment, start, self.piece.end_position, chunk_bytes=self.chunk_bytes)

    def _error(self, kind: type[KbrokerSourceError], what: str, offset: int | None = None) -> KbrokerSourceError:
        if offset is None:
            offset = min(max(self._given, self._walk.expected or 0), self.piece.end_offset)
        return segment_error(kind, what, self.piece.segment, self.storage, offset=offset)


def read_ranges(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    expected_end: int | None,
    *,
    chunk_bytes: int,
) -> Generator[bytes]:
    """The bytes from `start` to the segment's end, in blocks of at most `chunk_bytes`. Bytes after `expected_end` are
    not read ahead.

    Each block is one request to the store and is read completely before the caller gets it, so no connection stays open
    while Spark does something else. The next block is read ahead.
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
            block = _read(storage, segment, at, end) if ahead is None else ahead.result()
            ahead = None
            if index + 1 < len(bounds) and bounds[index + 1][1] <= expected:
                ahead = pool.submit(_read, storage, segment, *bounds[index + 1])
            yield block


def _read(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    with closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
        at = start
        while at < end:
            part = stream.read(end - at)
            if not part:
                raise RemoteObjectDamaged(f"the object ends at byte {at}, but its segment has at least {end} bytes")
            parts.append(part)
            at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
