"""Topics for the client tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.brokers import Broker
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import connected

NewTopic = Callable[..., str]


@pytest.fixture(scope="session")
def new_topic(broker: Broker, new_topic_name: Callable[[str], str]) -> NewTopic:
    """`new_topic("stem", partitions=3)`: create a topic and wait until it has a leader; returns its name."""

    def create(stem: str, *, partitions: int = 1, **configs: str) -> str:
        name = new_topic_name(stem)
        settings = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
        topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": settings}
        with connected(broker.bootstrap_servers) as connection:
            answer = connection.call("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 30_000})
        assert answer["Topics"][0]["ErrorCode"] == 0, answer
        await_leaders(broker.bootstrap_servers, name, partitions)
        return name

    return create
