"""Clients over `wire.client`: `streaming` is a connection on the event loop, `blocking` one for commands and tests.

`cluster` uses blocking connections to all brokers of a cluster.
"""
