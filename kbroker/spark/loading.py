"""`kbroker.spark.load`: the rows of `format("kbroker")`, planned by the driver's own Python.

For a Python data source Spark starts three processes one after the other: to discover sources, to create this one and
to plan. Each of them imports PySpark again. The driver's program has imported everything already, so it plans by
itself, and executors read the pieces in `mapInArrow`, which needs only the process that forks the workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kbroker.spark.options import SourceOptions
from kbroker.spark.planning import batch_tasks
from kbroker.spark.reading import TaskReader
from kbroker.spark.schema import columns_of, default_schema, parse_schema

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def load(spark: SparkSession, options: Mapping[str, str], schema: StructType | str | None = None) -> DataFrame:
    """See `kbroker.spark.load`."""
    source = SourceOptions.parse(options).for_batch()
    chosen = default_schema(source) if schema is None else parse_schema(schema)
    columns = columns_of(chosen)
    tasks = batch_tasks(source)
    if not tasks:
        return spark.createDataFrame([], chosen)
    # One row for each task. Rows from createDataFrame would be split by the number of cores.
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(_reading(TaskReader(source, columns), [pickle.dumps(task) for task in tasks]), chosen)


def _reading(reader: TaskReader, tasks: Sequence[bytes]) -> Read:
    """The function that a task runs. Every task gets the pieces of all, but as bytes, and unpickles only its own."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.rows(pickle.loads(tasks[number]))  # noqa: S301  (pickled by us)

    return read
