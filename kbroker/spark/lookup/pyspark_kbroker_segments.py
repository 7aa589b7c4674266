"""Where PySpark looks for `format("kbroker-segments")`: see pyspark_kbroker.py beside it."""

from kbroker.spark.segments_source import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
