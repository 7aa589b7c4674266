"""Scenarios of tiered storage, run on Apache Kafka with its directory tier and on the broker under test."""
