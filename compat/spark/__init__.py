"""Spark's stock Kafka connector, with PySpark in a virtual environment of its own."""
