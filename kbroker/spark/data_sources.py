"""The data sources of PySpark, as far as Spark asks for them before anything is read.

Whoever uses any data source in Python has Spark look for all that are installed: it imports this module for their
names. Then it makes one in another process, to learn its columns, and has a third one plan. So each method imports what
it needs itself, and this module nothing but PySpark.

What goes from one process to another is pickled, so it is options as text and what `Reading` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kbroker.spark.segments_source import SegmentsReader, SegmentsStreamReader
    from kbroker.spark.source import KbrokerReader
    from kbroker.spark.streaming import KbrokerStreamReader

TOPICS: Final = "kbroker"
SEGMENTS: Final = "kbroker-segments"


class KbrokerDataSource(DataSource):
    """`format("kbroker")`, see docs/spark.md.

    Errors  KbrokerSourceError, which Spark shows with what a Python process raised
    """

    @classmethod
    def name(cls) -> str:
        return TOPICS

    def schema(self) -> StructType:
        """Asked for where the user names no schema. The options are checked here, before anything else happens."""
        from kbroker.spark.options import SourceOptions  # noqa: PLC0415
        from kbroker.spark.schema import default_schema  # noqa: PLC0415

        return default_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> KbrokerReader:
        from kbroker.spark.source import KbrokerReader  # noqa: PLC0415

        return KbrokerReader(self.options, schema)

    def streamReader(self, schema: StructType) -> KbrokerStreamReader:  # noqa: N802  (PySpark's name)
        from kbroker.spark.streaming import KbrokerStreamReader  # noqa: PLC0415

        return KbrokerStreamReader(self.options, schema)


class SegmentsDataSource(DataSource):
    """`format("kbroker-segments")`, see `kbroker.spark.segments_source`."""

    @classmethod
    def name(cls) -> str:
        return SEGMENTS

    def schema(self) -> StructType:
        from kbroker.spark.segments_source import SCHEMA, options_of  # noqa: PLC0415

        options_of(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> SegmentsReader:
        from kbroker.spark.segments_source import SegmentsReader, refuse_other  # noqa: PLC0415

        refuse_other(schema)
        return SegmentsReader(self.options)

    def streamReader(self, schema: StructType) -> SegmentsStreamReader:  # noqa: N802  (PySpark's name)
        from kbroker.spark.segments_source import SegmentsStreamReader, refuse_other  # noqa: PLC0415

        refuse_other(schema)
        return SegmentsStreamReader(self.options)
