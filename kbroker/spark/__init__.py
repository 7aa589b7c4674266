"""kbroker's topics as a source of Spark, and jobs on top of it: see docs/spark.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kbroker")` and `format("kbroker-segments")` known to a session.

    Spark finds it by itself where this package is installed for its Python (it looks for modules called `pyspark_…`);
    this is for who put it on the path in another way, after Spark had looked.
    """
    from kbroker.spark.segments_source import SegmentsDataSource  # noqa: PLC0415  (PySpark is not everywhere)
    from kbroker.spark.source import KbrokerDataSource  # noqa: PLC0415

    spark.dataSource.register(KbrokerDataSource)
    spark.dataSource.register(SegmentsDataSource)
