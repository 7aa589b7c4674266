"""Lets PySpark discover `format("kbroker")`: it looks for DefaultSource in all modules called `pyspark_…`."""

from kbroker.spark.data_sources import KbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
