"""A batch query of `format("kbroker")`. Spark's planning process calls `partitions`, its workers call `read`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.spark.options import SourceOptions
from kbroker.spark.reading import read_piece
from kbroker.spark.schema import columns_of
from kbroker.spark.worker import settle


class KbrokerReader(DataSourceReader):
    """Plans once on the driver; executors read. Errors: KbrokerSourceError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_batch()
        self._columns = columns_of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """One for each piece."""
        from kbroker.spark.planning import batch_pieces  # noqa: PLC0415  (executors do not plan)

        return [InputPartition(piece) for piece in batch_pieces(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one piece; Spark passes None if there are no pieces."""
        settle()
        if partition is None:
            return iter(())
        return read_piece(self._options, partition.value, self._columns)
