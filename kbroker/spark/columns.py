"""Record batches as they are stored, made into Arrow's columns.

The columns are those of Spark's Kafka source, in its order and with its types. A RowsBuilder takes batches one by one
and walks their records (see kbroker.spark.walk); `take` makes rows of what has come together, for many batches at once.
Keys and values are copied once, by Arrow: the bytes of a buffer of batches, cut into the gaps and the values between
them, are a binary array already, of which every second element is taken.

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
from kbroker.spark.walk import Fields, Ints, find_records, read_fields, read_headers
from wire.compression import Bytes, Codec, decompress
from wire.errors import Malformed
from wire.record_batch import CODEC_MASK, HEADER_SIZE, MAX_DECOMPRESSED_BYTES, RecordBatch

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
"""The columns that there are, in the Kafka source's order."""

COLUMNS: Final = tuple(name for name in TYPES if name != "headers")
"""What is read where nobody says anything else."""

DEFAULT_ROWS_BYTES: Final = 8 << 20

Int32s: TypeAlias = npt.NDArray[np.int32]
ErrorAt = Callable[[type[KbrokerSourceError], str, int], KbrokerSourceError]
"""Makes an error of this kind that says what happened to the batch with this base_offset."""

_MAX_MILLISECONDS: Final = (1 << 63) // 1000 - 1


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the order given. Errors: KeyError for a name that is no column."""
    return pa.schema([(name, TYPES[name]) for name in columns])


class RowsBuilder:
    """The rows of one partition with offsets in [start_offset, end_offset), batch by batch.

    Shape   columns are names out of TYPES, in the order of the rows
    Bound   it is full at about `rows_bytes` of records, which one batch may exceed by MAX_DECOMPRESSED_BYTES at most
    Errors  what `error_at` makes of DamagedObject, UnknownCodec, UnrepresentableRecord: from `add` or from `take`,
            which first gives the rows of all batches before the bad one
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str] = COLUMNS,
        *,
        start_offset: int,
        end_offset: int,
        error_at: ErrorAt,
        rows_bytes: int = DEFAULT_ROWS_BYTES,
    ) -> None:
        self.schema = schema_of(columns)
        self._topic = topic.encode()
        self._partition = partition
        self._start = start_offset
        self._end = end_offset
        self._error_at = error_at
        self._rows_bytes = rows_bytes
        self._parts: list[_Part] = []
        self._bytes = 0
        self._next_offset = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time for `take`."""
        return self._bytes >= self._rows_bytes

    def add(self, batch: RecordBatch) -> None:
        """Take the records of a batch that is whole and whose CRC is right."""
        if batch.attributes & CODEC_MASK > Codec.ZSTD:
            raise self._error_at(
                UnknownCodec, f"a batch's compression codec is {batch.attributes & CODEC_MASK}", batch.base_offset
            )
        if batch.base_offset < self._next_offset:
            what = f"a batch begins at offset {batch.base_offset}, and the one before ends at {self._next_offset - 1}"
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
        """The rows that have come together since the last time."""
        parts, self._parts, self._bytes = self._parts, [], 0
        for part in parts:
            yield from self._rows_of(part)

    def _rows_of(self, part: _Part) -> Iterator[pa.RecordBatch]:
        """Of a part that has a bad batch, the rows before it and then the error."""
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
    """Records that are rows. Units: base_timestamps in ms: where timestamp_types is 1, it is the record's own."""

    data: Bytes
    fields: Fields
    offsets: Ints
    base_timestamps: Ints
    timestamp_types: Int32s


class _NoTimestamp(Exception):
    """A timestamp that is not in the range of microseconds."""


class _Part:
    """Batches whose records lie in one buffer: that of the batches themselves, or one of decoded blocks (None)."""

    __slots__ = ("batches", "buffer", "counts", "payloads", "shifts", "starts")

    def __init__(self, buffer: Bytes | None) -> None:
        self.buffer = buffer
        self.batches: list[RecordBatch] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.payloads: list[bytes] = []
        self.shifts = [0]

    def add(self, batch: RecordBatch) -> int:
        """Bytes of records that came with it. Errors: Malformed; nothing has changed then."""
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
        """The buffer in which the records are, and where each of them begins."""
        starts = np.array(self.starts, np.int64)
        if self.buffer is not None:
            return self.buffer, starts
        starts += np.repeat(np.array(self.shifts[:-1], np.int64), self.counts)
        return self.payloads[0] if len(self.payloads) == 1 else b"".join(self.payloads), starts

    def split(self) -> Iterator[_Part]:
        """Parts of one batch each."""
        for batch in self.batches:
            part = _Part(self.buffer)
            part.add(batch)
            yield part

    def offsets(self, deltas: Ints) -> Ints:
        """Errors: Malformed, if they do not rise, or one is outside of its batch."""
        bases = [batch.base_offset for batch in self.batches]
        offsets = self._each(bases) + deltas
        if (deltas < 0).any() or (deltas > self._each([batch.last_offset_delta for batch in self.batches])).any():
            raise Malformed("a record's offset is outside of its batch")
        if (offsets[1:] <= offsets[:-1]).any():
            raise Malformed("records' offsets do not rise")
        return offsets

    def timestamps(self) -> Ints:
        """What each record's timestamp delta is to be added to, or instead of it the time that the broker set."""
        return self._each(
            [batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp for batch in self.batches]
        )

    def timestamp_types(self) -> Int32s:
        """0 where a producer set it, 1 where the broker did."""
        return np.repeat(np.array([batch.is_log_append_time for batch in self.batches], np.int32), self.counts)

    def _each(self, values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), self.counts)
