"""Checks the batches of a piece, one after the other, before their records become rows.

Each batch has to have a possible header, a valid CRC, and a place among the other batches. The CRC does not cover
base_offset, so the walk compares it with the neighbours: a batch that begins before the end of the previous batch, or
ends after its segment, is damaged. A gap between two batches is either legal (the topic was compacted before it was
tiered) or the result of a flipped bit. To tell these apart, the walk checks one more batch after a gap, and after the
first batch of a piece that begins inside its segment, even if that batch is after the piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from kbroker.spark.errors import DamagedObject, KbrokerSourceError
from kbroker.spark.parts import Parts
from kbroker.spark.pieces import SegmentPiece
from wire.batch_header import HEADER_SIZE
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch

FOREVER: Final = (1 << 63) - 1
MAX_BATCH_BYTES: Final = MAX_DECOMPRESSED_BYTES + HEADER_SIZE


class Doubtful(Malformed):
    """The piece's first batch may be damaged; only the batches before the piece can tell."""


class SegmentWalk:
    """The state of a walk over the batches of one piece, which adds them to `parts`.

    Shape  expected is the next offset, None before the first batch of a piece that begins inside its segment
    Note   _is_second: the next batch is the second one of such a piece; _is_gap: offsets are missing before the last
           batch. In both cases no other batch has confirmed the last one yet
    Errors  what `error` returns for DamagedObject and a message
    """

    __slots__ = (
        "_aborted",
        "_end_offset",
        "_error",
        "_is_gap",
        "_is_second",
        "_parts",
        "_segment_bytes",
        "_segment_end",
        "_segment_start",
        "_start_offset",
        "expected",
    )

    def __init__(
        self, piece: SegmentPiece, parts: Parts, error: Callable[[type[KbrokerSourceError], str], KbrokerSourceError]
    ) -> None:
        self._start_offset: int = piece.start_offset
        self._end_offset: int = piece.end_offset
        self._segment_start: int = piece.segment.start_offset
        self._segment_end: int = piece.segment.end_offset
        self._segment_bytes: int = piece.segment.segment_size_in_bytes
        self._parts = parts
        self._error = error
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for one in piece.aborted:
            self._aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
        for spans in self._aborted.values():
            spans.sort()
        self.expected: int | None = None if piece.start_position else self._segment_start
        self._is_second = False
        self._is_gap = False

    @property
    def is_done(self) -> bool:
        """Whether no further batch is needed, neither for its records nor to confirm another one."""
        expected = self.expected
        return expected is not None and expected >= self._end_offset and not self._is_gap and not self._is_second

    @property
    def is_confirmed(self) -> bool:
        """Whether the end of the segment is a valid end of the walk."""
        expected = self.expected or 0
        return expected >= self._end_offset and (not self._is_second or expected == self._segment_end + 1)

    def take(self, data: bytes, at: int, position: int) -> tuple[int, int]:
        """Take the complete batches of `data` from `at` on, which is at `position` of the segment. Returns where they
        end, and how many bytes the next one needs; 0 if there are enough rows.
        """
        parts = self._parts
        position -= at
        while not self.is_done:
            if parts.is_full:
                return at, 0
            if len(data) - at < HEADER_SIZE:
                return at, HEADER_SIZE
            try:
                batch = RecordBatch(data, at)
            except Malformed as error:
                raise self._error(DamagedObject, f"no batch begins at byte {position + at}: {error}") from error
            self._check_size(batch.size, position + at)
            if not batch.is_whole:
                return at, batch.size
            if not batch.crc_is_valid():
                raise self._error(DamagedObject, f"the CRC of the batch at byte {position + at} is wrong")
            self._check_place(batch, position + at)
            if batch.base_offset < self._end_offset and not batch.is_control and not self._is_aborted(batch):
                parts.add(batch)
            at += batch.size
        return at, HEADER_SIZE

    def _is_aborted(self, batch: RecordBatch) -> bool:
        if not self._aborted or not batch.is_transactional:
            return False
        spans = self._aborted.get(batch.producer_id)
        if spans is None:
            return False
        at = bisect_right(spans, (batch.base_offset, FOREVER)) - 1
        return at >= 0 and batch.base_offset < spans[at][1]

    def _check_size(self, size: int, position: int) -> None:
        """Checks the size before memory is allocated for the batch."""
        left = self._segment_bytes - position
        if size > min(left, MAX_BATCH_BYTES):
            what = f"the batch at byte {position} has {size} bytes, but there are {left}"
            raise self._error(DamagedObject, what)

    def _check_place(self, batch: RecordBatch, position: int) -> None:
        """Errors: Doubtful."""
        expected = self.expected
        base_offset, last_offset = batch.base_offset, batch.last_offset
        is_first = expected is None
        if expected is None:
            if base_offset > self._start_offset:
                raise Doubtful
            expected = base_offset
            first = self._segment_start
        else:
            first = expected
            if self._is_second and base_offset > expected:
                raise Doubtful
        if not first <= base_offset <= last_offset <= self._segment_end:
            raise self._error(
                DamagedObject,
                f"the batch at byte {position} claims the offsets {base_offset} to {last_offset},"
                f" where offsets from {first} to {self._segment_end} are expected",
            )
        self._is_gap = base_offset > expected
        self._is_second = is_first
        self.expected = last_offset + 1
