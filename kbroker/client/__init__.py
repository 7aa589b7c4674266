"""Connections to brokers over `wire.client`: `streaming` for the event loop, `blocking` for commands and tests."""
