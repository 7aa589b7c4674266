"""Sends the same bytes to Apache Kafka and to the broker under test, and compares their answers."""
