"""The fixtures of the client tests serve the tools too."""

from compat.clients.conftest import new_topic

__all__ = ["new_topic"]
