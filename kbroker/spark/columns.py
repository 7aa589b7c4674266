"""Converts stored record batches to Arrow columns.

The columns have the names, order and types of Spark's Kafka source. A RowsBuilder takes batches one at a time and
finds their records (see kbroker.spark.parts); `take` converts the records of many batches at once. Arrow copies keys
and values once: the buffer of the batches, cut into gaps and values, is a binary array; every second element is used.

Source  KafkaRecordToRowConverter of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbroker.spark.arrow import binary_column, constant_column, header_column, number_column
from kbroker.spark.errors import DamagedObject, UnrepresentableRecord
from kbroker.spark.parts import ErrorAt, Part, Parts
from kbroker.spark.pieces import Piece
from kbroker.spark.walk import Fields, Ints, read_fields, read_headers
from wire.compression import Bytes
from wire.errors import Malformed
from wire.record_batch import RecordBatch

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
_MAX_MILLISECONDS: Final = (1 << 63) // 1000 - 1


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the given order. Errors: KeyError for an unknown name."""
    return pa.schema([(name, TYPES[name]) for name in columns])


class RowsBuilder:
    """Builds the rows of a piece, one batch at a time, from the batches that are added to its `parts`.

    Shape   columns are keys of TYPES, in the order of the rows
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
        self.parts = Parts(rows_bytes, error_at)
        topic, self._partition = piece.topic_partition
        self._topic = topic.encode()
        self._start = piece.start_offset
        self._end = piece.end_offset
        self._error_at = error_at

    @property
    def is_full(self) -> bool:
        """Whether the caller should call `take` now."""
        return self.parts.is_full

    def add(self, batch: RecordBatch) -> None:
        """See Parts."""
        self.parts.add(batch)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batches added since the last `take`."""
        for part in self.parts.take():
            yield from self._rows_of(part)

    def _rows_of(self, part: Part) -> Iterator[pa.RecordBatch]:
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
            raise self._error_at(DamagedObject, str(error), offset) from error
        if made is not None:
            yield made

    def _made(self, part: Part) -> pa.RecordBatch | None:
        """Errors: Malformed, _NoTimestamp."""
        data, starts = _records(part)
        fields = read_fields(np.frombuffer(data, np.uint8), starts)
        offsets = _offsets(part, fields.offset_deltas)
        first, last = (int(place) for place in np.searchsorted(offsets, (self._start, self._end)))
        if first == last:
            return None
        wanted = slice(first, last)
        fields = Fields(*(array[wanted] for array in fields))
        rows = _Rows(data, fields, offsets[wanted], _timestamps(part)[wanted], _timestamp_types(part)[wanted])
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


def _records(part: Part) -> tuple[Bytes, Ints]:
    """The buffer with the records, and the position of each record in it."""
    starts = np.array(part.starts, np.int64)
    if part.buffer is not None:
        return part.buffer, starts
    starts += np.repeat(np.array(part.shifts[:-1], np.int64), part.counts)
    return part.payloads[0] if len(part.payloads) == 1 else b"".join(part.payloads), starts


def _offsets(part: Part, deltas: Ints) -> Ints:
    """Errors: Malformed if offsets do not ascend or one is outside its batch."""
    offsets = _each(part, [batch.base_offset for batch in part.batches]) + deltas
    if (deltas < 0).any() or (deltas > _each(part, [batch.last_offset_delta for batch in part.batches])).any():
        raise Malformed("a record's offset is outside its batch")
    if (offsets[1:] <= offsets[:-1]).any():
        raise Malformed("the offsets of the records do not ascend")
    return offsets


def _timestamps(part: Part) -> Ints:
    """The base timestamp of each record's delta, or the broker's timestamp if the batch is LogAppendTime."""
    return _each(
        part, [batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp for batch in part.batches]
    )


def _timestamp_types(part: Part) -> Int32s:
    """0 if the producer set the timestamp, 1 if the broker did."""
    return np.repeat(np.array([batch.is_log_append_time for batch in part.batches], np.int32), part.counts)


def _each(part: Part, values: list[int]) -> Ints:
    return np.repeat(np.array(values, np.int64), part.counts)
