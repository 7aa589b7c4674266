"""Kafka's own command-line tools against the broker and its files; their output is read, not only their status."""
