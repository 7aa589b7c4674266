"""A Spark data source for kbroker's topics, and jobs that use it. See docs/spark.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def load(spark: SparkSession, options: Mapping[str, str], schema: StructType | str | None = None) -> DataFrame:
    """Return the rows of `spark.read.format("kbroker").options(**options).load()`, but start faster.

    This process plans the query itself; for `format("kbroker")` Spark starts three Python processes to do that.

    The call fixes the offsets: every action on the result sees the same offsets, even if the topic's end has moved
    since. `schema` selects columns; it is Spark's DDL or a StructType.
    Errors  KbrokerSourceError, from this call if nothing can be read, and from Spark while it reads
    """
    from kbroker.spark.loading import load  # noqa: PLC0415  (PySpark is optional)

    return load(spark, options, schema)


def register(spark: SparkSession) -> None:
    """Register `format("kbroker")` and `format("kbroker-segments")` with a session.

    Spark discovers them by itself if this package is installed for its Python: it looks for modules called
    `pyspark_…`. Call this function if the package is on the path in another way, or if Spark reports
    DATA_SOURCE_NOT_FOUND. The call also checks the interpreter that Spark starts.

    Errors  KbrokerSourceError if that interpreter does not have the package
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (PySpark is optional)

    from kbroker.spark.data_sources import KbrokerDataSource, SegmentsDataSource  # noqa: PLC0415
    from kbroker.spark.interpreter import check_interpreter  # noqa: PLC0415

    check_interpreter(spark.sparkContext.pythonExec)
    for source in (KbrokerDataSource, SegmentsDataSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark discovered it by itself
                raise
