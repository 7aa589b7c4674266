"""`format("kbroker")`: kbroker's topics as a data source of PySpark.

Spark makes these objects in processes of its own: one that is asked for the schema, one for the partitions, and workers
that read them. What goes from one to another is pickled, so it is options as text and what `Reading` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.spark.options import SourceOptions
from kbroker.spark.reading import read_piece, reading_of
from kbroker.spark.schema import ALL_COLUMNS, columns_of
from kbroker.spark.worker import forget_zip_finders

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.streaming import KbrokerStreamReader

NAME: Final = "kbroker"


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

    def streamReader(self, schema: StructType) -> KbrokerStreamReader:  # noqa: N802  (PySpark's name)
        from kbroker.spark.streaming import KbrokerStreamReader  # noqa: PLC0415  (batch queries need none of it)

        return KbrokerStreamReader(self.options, schema)


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
        forget_zip_finders()
        if partition is None:
            return iter(())
        return read_piece(self._reading, partition.value, self._columns)
