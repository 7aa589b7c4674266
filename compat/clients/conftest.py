"""Topics for the client tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.brokers import Broker
from compat.clients.filling import create

NewTopic = Callable[..., str]


@pytest.fixture(scope="session")
def new_topic(broker: Broker, new_topic_name: Callable[[str], str]) -> NewTopic:
    """`new_topic("stem", partitions=3)`: create a topic and wait until it has a leader; returns its name."""

    def new(stem: str, *, partitions: int = 1, **configs: str) -> str:
        return create(broker.bootstrap_servers, new_topic_name(stem), partitions, **configs)

    return new
