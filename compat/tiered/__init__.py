"""Scenarios of tiered storage, the same ones on Apache Kafka with its directory tier and on the broker under test."""
