"""Collects batches until their rows are built, and finds where their records start.

kbroker.spark.walk decodes the other fields of all records at once. This module and kbroker.spark.segment_walk handle
each batch, so they are compiled (docs/design.md), and import neither numpy nor Arrow.

Source  figures in docs/spark.md, from tests/bench/spark_walk.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.spark.errors import DamagedObject, KbrokerSourceError, UnknownCodec
from wire.batch_header import CODEC_MASK, HEADER_SIZE
from wire.compression import Codec, decompress
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from wire.record_walk import find_records

ErrorAt = Callable[[type[KbrokerSourceError], str, int], KbrokerSourceError]
"""Creates an error: its class, the message, and the base_offset of the batch."""


class Part:
    """Batches whose records are in one buffer: the batches' own, or decompressed blocks (buffer is None).

    Shape  counts: records of each batch; starts: the position of each record in its block; shifts: the position of each
           block in the joined payloads
    """

    __slots__ = ("batches", "buffer", "counts", "payloads", "shifts", "starts")

    def __init__(self, buffer: bytes | None) -> None:
        self.buffer = buffer
        self.batches: list[RecordBatch] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.payloads: list[bytes] = []
        self.shifts: list[int] = [0]

    def add(self, batch: RecordBatch) -> int:
        """Returns the size of the batch's records in bytes. Errors: Malformed; the part is then unchanged."""
        buffer = self.buffer
        if buffer is not None:
            start, end = batch.position + HEADER_SIZE, batch.position + batch.size
            find_records(buffer, start, end, batch.record_count, self.starts)
            size = end - start
        else:
            payload = decompress(batch.codec, batch.payload, max_bytes=MAX_DECOMPRESSED_BYTES)
            size = len(payload)
            find_records(payload, 0, size, batch.record_count, self.starts)
            self.payloads.append(payload)
            self.shifts.append(self.shifts[-1] + size)
        self.batches.append(batch)
        self.counts.append(batch.record_count)
        return size

    def split(self) -> Iterator[Part]:
        """Parts with one batch each."""
        for batch in self.batches:
            part = Part(self.buffer)
            part.add(batch)
            yield part


class Parts:
    """The batches whose rows are to be built.

    Bound   it is full at about `rows_bytes` of records; one batch may exceed that by at most MAX_DECOMPRESSED_BYTES
    Errors  what `error_at` returns for DamagedObject and UnknownCodec, raised by `add`
    """

    __slots__ = ("_bytes", "_error_at", "_next_offset", "_parts", "_rows_bytes")

    def __init__(self, rows_bytes: int, error_at: ErrorAt) -> None:
        self._rows_bytes = rows_bytes
        self._error_at = error_at
        self._parts: list[Part] = []
        self._bytes = 0
        self._next_offset = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._rows_bytes

    def add(self, batch: RecordBatch) -> None:
        """Add the records of a complete batch with a valid CRC, whose buffer is of type bytes."""
        codec = batch.attributes & CODEC_MASK
        if codec > Codec.ZSTD:
            raise self._error_at(UnknownCodec, f"a batch's compression codec is {codec}", batch.base_offset)
        if batch.base_offset < self._next_offset:
            what = f"a batch begins at offset {batch.base_offset}, but the previous one ends at {self._next_offset - 1}"
            raise self._error_at(DamagedObject, what, batch.base_offset)
        self._next_offset = batch.next_offset
        buffer: bytes | None = None
        if codec == Codec.NONE:
            assert isinstance(batch.buffer, bytes)
            buffer = batch.buffer
        if not self._parts or self._parts[-1].buffer is not buffer:
            self._parts.append(Part(buffer))
        try:
            self._bytes += self._parts[-1].add(batch)
        except Malformed as error:
            raise self._error_at(DamagedObject, str(error), batch.base_offset) from error

    def take(self) -> list[Part]:
        """The parts with the batches added since the last `take`."""
        parts = self._parts
        self._parts = []
        self._bytes = 0
        return parts
