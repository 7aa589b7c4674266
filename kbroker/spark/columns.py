"""Converts stored record batches to Arrow columns.

The columns have the names, order and types of Spark's Kafka source. A RowsBuilder takes batches one at a time and
finds their records (see kbroker.spark.walk); `take` converts the records of many batches at once. Arrow copies keys and
values once: the buffer of the batches, cut into gaps and values, is a binary array; every second element is used.

Source  KafkaRecordToRowConverter of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbroker.spark.arrow import binary_column, constant_column, header_column, number_column
from kbroker.spark.errors import DamagedObject, KbrokerSourceError, UnknownCodec, UnrepresentableRecord
from kbroker.spark.pieces import Piece
from kbroker.spark.walk import Fields, Ints, find_records, read_fields, read_headers
from wire.batch_header import CODEC_MASK, HEADER_SIZE
from wire.compression import Bytes, Codec, decompress
from wire.errors import Malformed
from wire.record_batch import MAX_DECOMPRESSED_BYTES, RecordBatch

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""All columns, in the order of the Kafka source."""

COLUMNS: Final = tuple(name for name in TYPES if name != "headers")
"""The columns that are read by default."""

DEFAULT_ROWS_BYTES: Final = 8 << 20

Int32s: TypeAlias = npt.NDArray[np.int32]
ErrorAt = Callable[[type[KbrokerSourceError], str, int], KbrokerSourceError]
"""Creates an error: its class, the message, and the base_offset of the batch."""

_MAX_MILLISECONDS: Final = (1 << 63) // 1000 - 1


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the given order. Errors: KeyError for an unknown name."""
    return pa.schema([(name, TYPES[name]) for name in columns])


class RowsBuilder:
    """Builds the rows of a piece, one batch at a time.

    Shape   columns are keys of TYPES, in the order of the rows
    Bound   it is full at about `rows_bytes` of records; one batch may exceed that by at most MAX_DECOMPRESSED_BYTES
    Errors  what `error_at` returns for DamagedObject, UnknownCodec and UnrepresentableRecord, raised by `add` or by
            `take`; `take` first yields the rows of all batches before the bad one
    """

    def __init__(
        self,
        piece: Piece,
        columns: Sequence[str] = COLUMNS,
        *,
        error_at: ErrorAt,
        rows_bytes: int = DEFAULT_ROWS_BYTES,
    ) -> None:
        self.schema = schema_of(columns)
        topic, self._partition = piece.topic_partition
        self._topic = topic.encode()
        self._start = piece.start_offset
        self._end = piece.end_offset
        self._error_at = error_at
        self._rows_bytes = rows_bytes
        self._parts: list[_Part] = []
        self._bytes = 0
        self._next_offset = 0

    @property
    def is_full(self) -> bool:
        """Whether the caller should call `take` now."""
        return self._bytes >= self._rows_bytes

    def add(self, batch: RecordBatch) -> None:
        """Add the records of a complete batch with a valid CRC."""
        if batch.attributes & CODEC_MASK > Codec.ZSTD:
            raise self._error_at(
                UnknownCodec, f"a batch's compression codec is {batch.attributes & CODEC_MASK}", batch.base_offset
            )
        if batch.base_offset < self._next_offset:
            what = f"a batch begins at offset {batch.base_offset}, but the previous one ends at {self._next_offset - 1}"
            raise self._error_at(DamagedObject, what, batch.base_offset)
        self._next_offset = batch.next_offset
        is_plain = batch.codec is Codec.NONE
        part = self._parts[-1] if self._parts else None
        if part is None or part.buffer is not (batch.buffer if is_plain else None):
            part = _Part(batch.buffer if is_plain else None)
            self._parts.append(part)
        try:
            self._bytes += part.add(batch)
        except Malformed as error:
            raise self._damaged(batch.base_offset, error) from error

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batches added since the last `take`."""
        parts, self._parts, self._bytes = self._parts, [], 0
        for part in parts:
            yield from self._rows_of(part)

    def _rows_of(self, part: _Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part. If it has a bad batch, yields the rows before that batch and then raises."""
        try:
            made = self._made(part)
        except (Malformed, _NoTimestamp) as error:
            if len(part.batches) > 1:
                for each in part.split():
                    yield from self._rows_of(each)
                return
            offset = part.batches[0].base_offset
            if isinstance(error, _NoTimestamp):
                what = "a record's timestamp is too far from 1970 for a column of timestamps"
                raise self._error_at(UnrepresentableRecord, what, offset) from error
            raise self._damaged(offset, error) from error
        if made is not None:
            yield made

    def _damaged(self, offset: int, error: Malformed) -> KbrokerSourceError:
        return self._error_at(DamagedObject, str(error), offset)

    def _made(self, part: _Part) -> pa.RecordBatch | None:
        """Errors: Malformed, _NoTimestamp."""
        data, starts = part.records()
        fields = read_fields(np.frombuffer(data, np.uint8), starts)
        offsets = part.offsets(fields.offset_deltas)
        first, last = (int(place) for place in np.searchsorted(offsets, (self._start, self._end)))
        if first == last:
            return None
        wanted = slice(first, last)
        fields = Fields(*(array[wanted] for array in fields))
        rows = _Rows(data, fields, offsets[wanted], part.timestamps()[wanted], part.timestamp_types()[wanted])
        return pa.RecordBatch.from_arrays(
            [self._column(field.name, field.type, rows) for field in self.schema], schema=self.schema
        )

    def _column(self, name: str, kind: pa.DataType, rows: _Rows) -> pa.Array:
        fields = rows.fields
        match name:
            case "key":
                return binary_column(rows.data, fields.key_positions, fields.key_sizes)
            case "value":
                return binary_column(rows.data, fields.value_positions, fields.value_sizes)
            case "topic":
                return constant_column(self._topic, len(rows.offsets))
            case "partition":
                return number_column(kind, np.full(len(rows.offsets), self._partition, np.int32))
            case "offset":
                return number_column(kind, rows.offsets)
            case "timestamp":
                return number_column(kind, _microseconds(rows))
            case "timestampType":
                return number_column(kind, rows.timestamp_types)
        assert name == "headers", name
        return header_column(kind, rows.data, read_headers(np.frombuffer(rows.data, np.uint8), fields))


def _microseconds(rows: _Rows) -> Ints:
    """Errors: _NoTimestamp."""
    timestamps = np.where(
        rows.timestamp_types == 1, rows.base_timestamps, rows.base_timestamps + rows.fields.timestamp_deltas
    )
    if timestamps.max() > _MAX_MILLISECONDS or timestamps.min() < -_MAX_MILLISECONDS:
        raise _NoTimestamp
    return timestamps * 1000


class _Rows(NamedTuple):
    """Records that become rows. Units: base_timestamps in ms; it is the record's own if timestamp_types is 1."""

    data: Bytes
    fields: Fields
    offsets: Ints
    base_timestamps: Ints
    timestamp_types: Int32s


class _NoTimestamp(Exception):
    """A timestamp outside the range of a column in microseconds."""


class _Part:
    """Batches whose records are in one buffer: the batches' own, or decompressed blocks (buffer is None)."""

    __slots__ = ("batches", "buffer", "counts", "payloads", "shifts", "starts")

    def __init__(self, buffer: Bytes | None) -> None:
        self.buffer = buffer
        self.batches: list[RecordBatch] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.payloads: list[bytes] = []
        self.shifts = [0]

    def add(self, batch: RecordBatch) -> int:
        """Returns the size of the batch's records in bytes. Errors: Malformed; the part is then unchanged."""
        if self.buffer is not None:
            start, end = batch.position + HEADER_SIZE, batch.position + batch.size
            find_records(self.buffer, start, end, batch.record_count, self.starts)
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

    def records(self) -> tuple[Bytes, Ints]:
        """The buffer with the records, and the position of each record in it."""
        starts = np.array(self.starts, np.int64)
        if self.buffer is not None:
            return self.buffer, starts
        starts += np.repeat(np.array(self.shifts[:-1], np.int64), self.counts)
        return self.payloads[0] if len(self.payloads) == 1 else b"".join(self.payloads), starts

    def split(self) -> Iterator[_Part]:
        """Parts with one batch each."""
        for batch in self.batches:
            part = _Part(self.buffer)
            part.add(batch)
            yield part

    def offsets(self, deltas: Ints) -> Ints:
        """Errors: Malformed if offsets do not ascend or one is outside its batch."""
        bases = [batch.base_offset for batch in self.batches]
        offsets = self._each(bases) + deltas
        if (deltas < 0).any() or (deltas > self._each([batch.last_offset_delta for batch in self.batches])).any():
            raise Malformed("a record's offset is outside its batch")
        if (offsets[1:] <= offsets[:-1]).any():
            raise Malformed("the offsets of the records do not ascend")
        return offsets

    def timestamps(self) -> Ints:
        """The base timestamp of each record's delta, or the broker's timestamp if the batch is LogAppendTime."""
        return self._each(
            [batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp for batch in self.batches]
        )

    def timestamp_types(self) -> Int32s:
        """0 if the producer set the timestamp, 1 if the broker did."""
        return np.repeat(np.array([batch.is_log_append_time for batch in self.batches], np.int32), self.counts)

    def _each(self, values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), self.counts)
