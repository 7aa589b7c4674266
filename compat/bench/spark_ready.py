"""A PySpark data source that reads nothing: it measures Spark's own cost for rows that come from Python.

Its rows have the columns of `format("kbroker")`, and each task repeats one ready-made Arrow batch. It is registered and
looked up before the clock starts, and it settles Spark's processes as `format("kbroker")` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.spark.schema import ALL_COLUMNS
from kbroker.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_RECORDS = 8_190
TASKS = 10


class ReadyMade(DataSource):
    """Options: records and record_bytes; records is a multiple of the tasks' batches."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        settle()
        return StructType(ALL_COLUMNS.fields[:-1])

    def reader(self, schema: StructType) -> DataSourceReader:
        settle()
        return _Reader(int(self.options["records"]), int(self.options["record_bytes"]), schema)


class _Reader(DataSourceReader):
    def __init__(self, records: int, record_bytes: int, schema: StructType) -> None:
        assert records % (TASKS * BATCH_RECORDS) == 0, records
        self._batches, self._record_bytes, self._schema = records // TASKS // BATCH_RECORDS, record_bytes, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415  (imported in the task that needs it)
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        del partition
        settle()
        schema = to_arrow_schema(self._schema)
        given = {"value": b"x" * self._record_bytes, "topic": "ready-made", "offset": 0}
        batch = pa.RecordBatch.from_pylist([given] * BATCH_RECORDS, schema=schema)
        yield from [batch] * self._batches
