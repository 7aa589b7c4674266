"""Lets PySpark discover `format("kbroker-segments")`, like pyspark_kbroker.py."""

from kbroker.spark.data_sources import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
