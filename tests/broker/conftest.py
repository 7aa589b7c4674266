"""All tests in this directory run on virtual time, against nodes in memory."""

from tests.handlers.conftest import broker, client, pytest_collection_modifyitems

__all__ = ["broker", "client", "pytest_collection_modifyitems"]
