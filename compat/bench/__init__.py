"""kbroker and Apache Kafka 4.3.1 side by side: `python -m compat.bench` (see compat/README.md)."""
