"""Kafka's own command-line tools against the broker and its files; the tests check their output, not only their
status.
"""
