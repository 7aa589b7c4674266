"""Record batches as they are stored, made into Arrow's columns.

The columns are those of Spark's Kafka source, in its order and with its types. A RowsBuilder takes batches one by one,
drops what lies outside of its range of offsets, and gives a pyarrow.RecordBatch whenever enough has come together.

Source  KafkaRecordToRowConverter of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from wire.errors import Malformed
from wire.record_batch import Record, RecordBatch

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


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in the order given. Errors: KeyError for a name that is no column."""
    return pa.schema([(name, TYPES[name]) for name in columns])


class RowsBuilder:
    """The rows of one partition with offsets in [start_offset, end_offset), batch by batch.

    Shape   columns are names out of TYPES, in the order of the rows
    Bound   it is full at about `rows_bytes` of keys and values, which one batch may exceed
    Errors  Malformed from `add`: the batch is damaged, none of its records has become a row
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str] = COLUMNS,
        *,
        start_offset: int,
        end_offset: int,
        rows_bytes: int = DEFAULT_ROWS_BYTES,
    ) -> None:
        self.schema = schema_of(columns)
        self._topic = topic
        self._partition = partition
        self._range = range(start_offset, end_offset)
        self._rows_bytes = rows_bytes
        self._records: list[tuple[Record, int]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time for `take`."""
        return self._bytes >= self._rows_bytes

    def add(self, batch: RecordBatch) -> None:
        """Take the records of a batch whose CRC is right."""
        kind = int(batch.is_log_append_time)
        found = [(record, kind) for record in batch.records() if record.offset in self._range]
        if any(not batch.base_offset <= record.offset <= batch.last_offset for record, _ in found):
            raise Malformed("a record's offset is outside of its batch")
        self._records += found
        self._bytes += sum(len(record.key or b"") + len(record.value or b"") for record, _ in found)

    def take(self) -> pa.RecordBatch | None:
        """The rows that have come together since the last time; None if there are none."""
        if not self._records:
            return None
        rows, self._records, self._bytes = self._records, [], 0
        made: dict[str, list[Any]] = {
            "key": [record.key for record, _ in rows],
            "value": [record.value for record, _ in rows],
            "topic": [self._topic] * len(rows),
            "partition": [self._partition] * len(rows),
            "offset": [record.offset for record, _ in rows],
            "timestamp": [record.timestamp * 1000 for record, _ in rows],
            "timestampType": [kind for _, kind in rows],
            "headers": [[{"key": key, "value": value} for key, value in record.headers] or None for record, _ in rows],
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(made[field.name], field.type) for field in self.schema], schema=self.schema
        )
