"""Where PySpark looks for `format("kbroker-segments")`: see pyspark_kbroker.py beside it."""

from kbroker.spark.data_sources import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
