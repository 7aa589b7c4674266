"""`format("kbroker")`: kbroker's topics as a data source of PySpark.

Spark makes these objects in processes of its own: one that is asked for the schema, one for the partitions, and workers
that read them. What goes from one to another is pickled, so it is options as text and what `Reading` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker.spark.errors import InvalidOption
from kbroker.spark.options import SourceOptions
from kbroker.spark.reading import Reading, read_piece

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "kbroker"

ALL_COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
"""The Kafka source's columns; headers are there with includeHeaders=true, or where a schema names them."""


class KbrokerDataSource(DataSource):
    """See docs/spark.md. Errors: KbrokerSourceError, which Spark shows with what a Python process raised."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Asked for where the user names no schema. The options are checked here, before anything else happens."""
        options = SourceOptions.parse(self.options)
        return ALL_COLUMNS if options.include_headers else StructType(ALL_COLUMNS.fields[:-1])

    def reader(self, schema: StructType) -> KbrokerReader:
        return KbrokerReader(self.options, schema)


class KbrokerReader(DataSourceReader):
    """A batch query: planned once on the driver, read by the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._columns = columns_of(schema)
        self._reading = reading_of(SourceOptions.parse(options).for_batch())

    def partitions(self) -> Sequence[InputPartition]:
        """One for each piece."""
        from kbroker.spark.planning import batch_pieces  # noqa: PLC0415  (executors do not plan)

        return [InputPartition(piece) for piece in batch_pieces(SourceOptions.parse(self._options))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one piece; Spark gives None where there is none at all."""
        if partition is None:
            return iter(())
        return read_piece(self._reading, partition.value, self._columns)


def reading_of(options: SourceOptions) -> Reading:
    """What executors need of the options."""
    return Reading(options.store, options.client, options.chunk_bytes, options.fail_on_data_loss)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of the columns that a schema asks for, in its order. Errors: InvalidOption."""
    known = {field.name: field.dataType for field in ALL_COLUMNS.fields}
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            near = get_close_matches(field.name, known, n=1, cutoff=0.6)
            raise InvalidOption(
                f"the schema has a column {field.name}, which there is not",
                remedy=f"did you mean {near[0]}?" if near else f"name some of {', '.join(known)}",
            )
        if field.dataType.simpleString() != wanted.simpleString():
            raise InvalidOption(
                f"the schema has the column {field.name} as {field.dataType.simpleString()}",
                remedy=f"take {wanted.simpleString()}, and cast it afterwards",
            )
    return tuple(field.name for field in schema.fields)
