"""Tells the tests of other programs where the plug-in's broker is."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

# arroyo and taskiq-aio-kafka, in this order
_VARIABLES: Final = ("DEFAULT_BROKERS", "TEST_KAFKA_URL")


@pytest.fixture(scope="session", autouse=True)
def _address(kbroker_server: Any) -> None:
    for name in _VARIABLES:
        os.environ[name] = kbroker_server.bootstrap_servers
