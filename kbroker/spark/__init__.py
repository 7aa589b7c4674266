"""kbroker's topics as a source of Spark, and jobs on top of it: see docs/spark.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def load(spark: SparkSession, options: Mapping[str, str], schema: StructType | str | None = None) -> DataFrame:
    """The rows of `spark.read.format("kbroker").options(**options).load()`, sooner: this process plans, where Spark
    would start three others for it.

    What is read is settled now: all that is done with the result sees the same offsets, also where `latest` means
    others by then. A schema, as Spark's DDL or otherwise, chooses columns.
    Errors  KbrokerSourceError, from this call where nothing can be read, and out of Spark while it is read
    """
    from kbroker.spark.loading import load  # noqa: PLC0415  (PySpark is not everywhere)

    return load(spark, options, schema)


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kbroker")` and `format("kbroker-segments")` known to a session.

    Spark finds it by itself where this package is installed for its Python (it looks for modules called `pyspark_…`).
    Call this where the package is on the path in another way, or where Spark says DATA_SOURCE_NOT_FOUND: it checks the
    interpreter that Spark starts.

    Errors  KbrokerSourceError where that interpreter does not have the package
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (PySpark is not everywhere)

    from kbroker.spark.data_sources import KbrokerDataSource, SegmentsDataSource  # noqa: PLC0415
    from kbroker.spark.interpreter import check_interpreter  # noqa: PLC0415

    check_interpreter(spark.sparkContext.pythonExec)
    for source in (KbrokerDataSource, SegmentsDataSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself
                raise
