"""Groups of Kafka's Java client: members join, leave, die, pause and return, with each assignment strategy.

Records are written when the group is stable, so each must arrive at the one member that owns its partition, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compat.brokers import Broker
from compat.clients.conftest import NewTopic
from compat.conftest import KafkaTool
from compat.kafka_tools.verifiable import PARTITIONS, STRATEGIES, JavaMember, Scene
from compat.oracle.groups import await_coordinator


@pytest.fixture
def scene(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic, new_topic_name: Callable[[str], str]
) -> Iterator[Scene]:
    assert callable(kafka_tool)  # Java is available
    group = new_topic_name("java-group")
    await_coordinator(broker.bootstrap_servers, group)
    made = Scene(broker.bootstrap_servers, group, new_topic("java-groups", partitions=PARTITIONS))
    yield made
    made.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_can_leave_and_return(scene: Scene, strategy: str) -> None:
    scene.join(strategy)
    second = scene.join(strategy)
    scene.share(3, 3)
    scene.read_more()
    scene.lose(second, JavaMember.stop)
    assert second.events[-1]["name"] == "shutdown_complete"
    scene.share(6)
    scene.read_more()
    scene.join(strategy)
    scene.share(3, 3)
    scene.read_more()


@pytest.mark.parametrize("strategy", ["range", "cooperative sticky"])
def test_dead_and_paused_members_lose_their_partitions(scene: Scene, strategy: str) -> None:
    scene.join(strategy)
    dies, pauses = scene.join(strategy), scene.join(strategy)
    scene.share(2, 2, 2)
    scene.read_more()
    pauses.pause()
    scene.lose(dies, JavaMember.kill)
    scene.share(6, without=pauses)
    pauses.resume()
    scene.share(3, 3)
    scene.read_more()


def test_a_static_member_that_restarts_causes_no_rebalance(scene: Scene) -> None:
    first, second = scene.join(instance="one"), scene.join(instance="two")
    scene.share(3, 3)
    scene.read_more()
    owned, rebalances = set(second.owns), first.rebalances
    scene.lose(second, JavaMember.kill)
    back = scene.join(instance="two")
    scene.share(3, 3)
    scene.read_more()
    assert back.owns == owned
    assert first.rebalances == rebalances
