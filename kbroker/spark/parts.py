"""Collects batches until their rows are built, and finds their records.

Each record begins where the previous one ends, so a loop finds the starts by their lengths; kbroker.spark.walk decodes
the other fields of all of them at once. This module and kbroker.spark.segment_walk handle each batch and each record,
so they are compiled (docs/design.md), and import neither numpy nor Arrow.

Source  DefaultRecord.readFrom of Apache Kafka 4.3.1; figures in docs/spark.md, from tests/bench/spark_walk.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64

from kbroker.spark.errors import DamagedObject, KbrokerSourceError, UnknownCodec
from wire.batch_header import CODEC_MASK, HEADER_SIZE
from wire.compression import Codec, decompress
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch

ErrorAt = Callable[[type[KbrokerSourceError], str, int], KbrokerSourceError]
"""Creates an error: its class, the message, and the base_offset of the batch."""

LEAST_RECORD_BYTES: Final = 7  # one byte each for length, attributes, two deltas, two lengths, number of headers


def find_records(data: bytes, position: i64, end: i64, count: i64, starts: list[int]) -> None:
    """Append the position of each of the `count` records in data[position:end] to `starts`.

    Errors  Malformed unless the last one ends exactly at `end`; `starts` is then unchanged
    Bound   (end - position) / LEAST_RECORD_BYTES records, whatever `count` is
    """
    before = len(starts)
    if not 0 <= count * LEAST_RECORD_BYTES <= end - position:
        raise Malformed(f"{count} records in {end - position} bytes")
    try:
        for _ in range(count):
            starts.append(position)
            first: i64 = data[position]
            if first < 128:
                position += 1 + (first >> 1)
                continue
            second: i64 = data[position + 1]
            if second < 128:
                position += 2 + ((first & 127 | second << 7) >> 1)
                continue
            size, position = _long_length(data, position)
            position += size
    except IndexError:
        position = -1
    if position != end:
        del starts[before:]
        raise Malformed(f"{count} records do not end where their batch does")


def _long_length(data: bytes, position: i64) -> tuple[i64, i64]:
    """A length of three or more bytes, and the position after it. Negative ones are detected later."""
    value: i64 = 0
    shift: i64 = 0
    while shift <= 28:
        byte: i64 = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value >> 1, position
        shift += 7
    raise IndexError


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
