"""Groups of KIP-848 with Java's consumer and librdkafka: members that come and go, static members, regular expressions,
and a group that moves between both protocols online.

Records are written when the group is stable, so each must arrive at the one member that owns its partition, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.members import ConfluentMember
from compat.conftest import KafkaTool
from compat.features import raise_features
from compat.kafka_tools.verifiable import PARTITIONS, JavaMember, Scene
from compat.oracle.groups import await_coordinator
from compat.waiting import until

PATIENCE_S = 120.0
HEARTBEAT = "group.consumer.heartbeat.interval.ms=500"
SHORT = ("group.consumer.min.heartbeat.interval.ms=500", HEARTBEAT, "group.consumer.min.session.timeout.ms=6000")
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ONLINE = "group.consumer.migration.policy=bidirectional"


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Broker:
    """A broker with group.version 1, short heartbeats and sessions."""
    started = start_broker(*SHORT, "group.consumer.session.timeout.ms=6000", ONLINE)
    raise_features(started.bootstrap_servers, {"group.version": 1})
    return started


@pytest.fixture
def group(broker: Broker, new_topic_name: Callable[[str], str]) -> str:
    """An unused group with an available coordinator."""
    name = new_topic_name("consumers")
    await_coordinator(broker.bootstrap_servers, name)
    return name


@pytest.fixture
def scene(broker: Broker, kafka_tool: KafkaTool, group: str) -> Iterator[Scene]:
    """A team of Java consumers; the topic has the group's name."""
    assert callable(kafka_tool)  # Java is available
    made = Scene(broker.bootstrap_servers, group, filling.create(broker.bootstrap_servers, group, PARTITIONS))
    yield made
    made.close()


def test_java_members_share_leave_die_and_return(scene: Scene) -> None:
    scene.join(protocol="consumer")
    leaves, dies = (scene.join(protocol="consumer") for _ in range(2))
    scene.share(2, 2, 2)
    scene.read_more()
    scene.lose(leaves, JavaMember.stop)
    scene.lose(dies, JavaMember.kill)
    scene.share(6)
    scene.read_more()
    scene.join(protocol="consumer")
    scene.share(3, 3)
    scene.read_more()


def test_a_static_java_member_returns_to_its_partitions(scene: Scene) -> None:
    first, second = (scene.join(protocol="consumer", instance=name) for name in ("one", "two"))
    scene.share(3, 3)
    scene.read_more()
    owned, rebalances = set(second.owns), first.rebalances
    scene.lose(second, JavaMember.stop)
    back = scene.join(protocol="consumer", instance="two")
    scene.share(3, 3)
    scene.read_more()
    assert back.owns == owned
    assert first.rebalances == rebalances


def test_java_members_move_a_group_between_both_protocols(scene: Scene) -> None:
    for protocol in ("classic", "classic", "consumer", "classic"):
        scene.join("cooperative sticky", protocol=protocol)
        if len(scene.members) == 3:
            scene.share(2, 2, 2)
            scene.lose(scene.members[0], JavaMember.stop)
            scene.share(3, 3)
            scene.read_more()
    scene.lose(scene.members[0], JavaMember.stop)  # the last one of the new protocol
    scene.share(6)
    scene.read_more()


class Librdkafka(ConfluentMember):
    """A member of the new protocol; `topic` may be a regular expression that begins with ^."""

    def __init__(self, servers: str, group: str, topic: str, **more: str) -> None:
        super().__init__(servers, group, topic, group_protocol="consumer", **more)


def stable(members: list[Librdkafka], counts: list[int], topics: int = 1) -> None:
    """Poll until the members own these numbers of partitions, all of them and each once."""

    def reached() -> bool:
        for member in members:
            member.poll()
        owned = [{(each.topic, each.partition) for each in member.consumer.assignment()} for member in members]
        return [*map(len, owned)] == counts and len(set().union(*owned)) == PARTITIONS * topics == sum(counts)

    until(reached, each_s=0, patience_s=PATIENCE_S)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_librdkafka_members_share_and_leave(broker: Broker, group: str, assignor: str) -> None:
    topic = filling.create(broker.bootstrap_servers, group, PARTITIONS)
    more = {"group_remote_assignor": assignor}
    members = [Librdkafka(broker.bootstrap_servers, group, topic, **more) for _ in range(3)]
    stable(members, [2, 2, 2])
    members.pop().close()
    stable(members, [3, 3])
    values = {partition: [b"%d" % number for number in range(50)] for partition in range(PARTITIONS)}
    filling.fill(broker.bootstrap_servers, topic, values)
    got: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)

    def complete() -> bool:
        for member in members:
            for record in member.poll():
                assert record.offset == got[record.partition], "a record was lost or delivered twice"
                got[record.partition] += 1
                member.commit({record.partition: (record.offset + 1, "")})
        return set(got.values()) == {50}

    until(complete, each_s=0, patience_s=PATIENCE_S)
    found = members[0].committed(range(PARTITIONS))
    assert {partition: offset for partition, (offset, _) in found.items()} == dict.fromkeys(range(PARTITIONS), 50)
    for member in members:
        member.close()


def test_a_static_librdkafka_member_keeps_its_partitions(broker: Broker, group: str) -> None:
    topic = filling.create(broker.bootstrap_servers, group, PARTITIONS)
    members = [Librdkafka(broker.bootstrap_servers, group, topic, group_instance_id=name) for name in ("one", "two")]
    stable(members, [3, 3])
    owned, changes = members[1].assignment(), len(members[0].changes)
    members.pop().close()
    members.append(Librdkafka(broker.bootstrap_servers, group, topic, group_instance_id="two"))
    stable(members, [3, 3])
    assert members[1].assignment() == owned
    assert len(members[0].changes) == changes
    for member in members:
        member.close()


def test_a_regular_expression_finds_new_topics(broker: Broker, group: str) -> None:
    filling.create(broker.bootstrap_servers, f"{group}-a", PARTITIONS)
    members = [Librdkafka(broker.bootstrap_servers, group, f"^{group}-[a-c]") for _ in range(2)]
    stable(members, [3, 3])
    filling.create(broker.bootstrap_servers, f"{group}-b", PARTITIONS)
    filling.create(broker.bootstrap_servers, f"{group}-other", PARTITIONS)
    stable(members, [6, 6], topics=2)
    for member in members:
        member.close()


def test_the_group_is_described_with_its_assignment(broker: Broker, group: str, kafka_tool: KafkaTool) -> None:
    topic = filling.create(broker.bootstrap_servers, group, PARTITIONS)
    members = [Librdkafka(broker.bootstrap_servers, group, topic) for _ in range(2)]
    stable(members, [3, 3])
    at = ("--bootstrap-server", broker.bootstrap_servers, "--describe", "--group", group)
    state = kafka_tool(GROUPS, *at, "--state", timeout_s=PATIENCE_S).stdout.split()
    assert {"uniform", "Stable", "2"} <= set(state)
    listed = kafka_tool(GROUPS, *at, "--members", "--verbose", timeout_s=PATIENCE_S).stdout
    assert listed.count(f"{topic}:") >= 2
    for member in members:
        member.close()
