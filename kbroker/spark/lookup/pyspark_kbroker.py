"""Where PySpark looks for kbroker's data source: it goes through all modules called `pyspark_…` for a DefaultSource."""

from kbroker.spark.data_sources import KbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
