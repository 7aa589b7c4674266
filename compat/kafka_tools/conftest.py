"""The fixtures of the client tests, reused for the tools."""

from compat.clients.conftest import new_topic

__all__ = ["new_topic"]
