"""kbroker's topics as a source of Spark, and jobs on top of it: see docs/spark.md."""
