"""`kbroker.spark.load`: the rows of `format("kbroker")`, planned by the driver's own Python.

Spark runs a Python data source by processes of its own: one looks for sources, one makes this one, one plans it, each
of which imports PySpark anew, one after the other. The driver's program has imported it all already, so it can plan
itself, and have executors read the pieces by `mapInArrow`, which takes the one process that forks the workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kbroker.spark.errors import InvalidOption
from kbroker.spark.options import SourceOptions
from kbroker.spark.planning import batch_pieces
from kbroker.spark.reading import Reading, read_piece, reading_of
from kbroker.spark.schema import columns_of, default_schema
from kbroker.spark.worker import settle

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def load(spark: SparkSession, options: Mapping[str, str], schema: StructType | str | None = None) -> DataFrame:
    """See `kbroker.spark.load`."""
    source = SourceOptions.parse(options).for_batch()
    chosen = default_schema(source) if schema is None else _parsed(schema)
    columns = columns_of(chosen)
    pieces = batch_pieces(source)
    if not pieces:
        return spark.createDataFrame([], chosen)
    # A number for each piece: Spark would put rows of its own into as many parts as there are cores.
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    return numbers.mapInArrow(_reader(reading_of(source), [pickle.dumps(piece) for piece in pieces], columns), chosen)


def _parsed(schema: StructType | str) -> StructType:
    """Errors: InvalidOption; what Spark says of text that is no DDL at all."""
    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise InvalidOption(f"the schema {schema} is a type, not columns", remedy='name them, as in "offset BIGINT"')
    return found


def _reader(reading: Reading, pieces: Sequence[bytes], columns: Sequence[str]) -> Read:
    """What a task runs. All pieces go to each task, as bytes: it makes its own ones of them, not the thousands."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_piece(reading, pickle.loads(pieces[number]), columns)  # noqa: S301  (it is our own)

    return read
