"""The PySpark data source classes. This module imports nothing but PySpark.

When a program uses any Python data source, Spark imports this module to learn the source names. Then it creates the
source in a second process to learn its columns, and plans in a third one. Each method therefore imports what it needs.

Objects that move between the processes are pickled: options as text or as SourceOptions.

Spark keeps these processes for later queries, so each of them is settled, see kbroker.spark.worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kbroker.spark.readers import KbrokerReader, KbrokerStreamReader
    from kbroker.spark.segments_source import SegmentsReader, SegmentsStreamReader

TOPICS: Final = "kbroker"
SEGMENTS: Final = "kbroker-segments"


class KbrokerDataSource(DataSource):
    """`format("kbroker")`, see docs/spark.md.

    Errors  KbrokerSourceError; Spark shows it together with the traceback of the Python process
    """

    @classmethod
    def name(cls) -> str:
        return TOPICS

    def schema(self) -> StructType:
        """Spark calls this if the user gives no schema. It checks the options before anything is read."""
        from kbroker.spark.options import SourceOptions  # noqa: PLC0415
        from kbroker.spark.schema import default_schema  # noqa: PLC0415
        from kbroker.spark.worker import settle  # noqa: PLC0415

        settle()
        return default_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> KbrokerReader:
        from kbroker.spark.readers import KbrokerReader  # noqa: PLC0415
        from kbroker.spark.worker import settle  # noqa: PLC0415

        settle()
        return KbrokerReader(self.options, schema)

    def streamReader(self, schema: StructType) -> KbrokerStreamReader:  # noqa: N802  (PySpark's name)
        from kbroker.spark.readers import KbrokerStreamReader  # noqa: PLC0415

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
