"""The same bytes to Apache Kafka and to the broker under test: their answers are compared."""
