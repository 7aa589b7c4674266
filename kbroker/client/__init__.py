"""Clients of brokers over `wire.client`: `trio_client` for the event loop, `blocking` for commands and jobs."""
