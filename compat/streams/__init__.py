"""Kafka Streams and Kafka Connect on the broker under test."""
