"""The log lines of a controller: one for each kind of change, not one for each partition."""

from __future__ import annotations

from typing import Any

from kbroker.controller.event_lines import lines_of
from kbroker.controller.periodic import ElectUncleanLeaders
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from tests.controller.cluster import Cluster, topic
from tests.controller.test_isr import alter
from tests.controller.test_reassignments import reassign
from wire.messages.unregister_broker import UnregisterBrokerRequest


def lines(before: Image, cluster: Cluster) -> list[tuple[str, Any]]:
    found = list(lines_of(Delta(before, cluster.image)))
    return [(line.event, line.fields.get("broker", line.fields.get("partitions"))) for line in found]


def test_the_life_of_a_broker_is_logged() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={0: [2, 1]}))
    seen = []
    for step in (
        lambda: cluster.heartbeat(2, fence=True),
        lambda: cluster.heartbeat(2),
        lambda: alter(cluster, [1, 2], sender=1),
        lambda: cluster.heartbeat(1, shut_down=True),
        lambda: (cluster.heartbeat(2), cluster.heartbeat(1, shut_down=True)),
        lambda: cluster.register_own(cluster.registration(1, 2)),
        lambda: cluster.ask(UnregisterBrokerRequest(broker_id=2)),
    ):
        before = cluster.image
        step()
        seen += lines(before, cluster)
    assert seen == [
        ("broker fenced", 2),
        ("partitions have other leaders", 1),
        ("broker unfenced", 2),
        ("broker begins to stop", 1),
        ("partitions have other leaders", 1),
        ("broker stopped", 1),
        ("broker registered", 1),
        ("broker unregistered", 2),
        ("partitions have no leader: no in-sync replica is available", 1),
    ]


def test_many_elections_are_one_line_with_a_few_names() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={index: [1, 2] for index in range(100)}))
    before = cluster.image
    cluster.heartbeat(1, fence=True)
    (_, line) = lines_of(Delta(before, cluster.image))
    assert line.fields == {"partitions": 100, "such_as": "a-0 1>2, a-1 1>2, a-2 1>2, a-3 1>2, a-4 1>2"}


def test_r9_an_unclean_election_is_a_warning() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [2, 3]}, configs={"unclean.leader.election.enable": "true"}))
    cluster.heartbeat(3, fence=True)
    before = cluster.image
    cluster.heartbeat(2, fence=True)
    warnings = [line.event for line in lines_of(Delta(before, cluster.image)) if line.is_warning]
    assert warnings == ["partitions have no leader: no in-sync replica is available"]
    before = cluster.image
    cluster.heartbeat(3)
    assert cluster.ask(ElectUncleanLeaders()) == 0, "its return elected it"
    warnings = [line.event for line in lines_of(Delta(before, cluster.image)) if line.is_warning]
    assert warnings == ["leaders elected outside of the ISR: records may be lost"]


def test_a_reassignment_is_logged_when_it_is_complete() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    before = cluster.image
    reassign(cluster, [1, 3])
    assert lines(before, cluster) == []
    before = cluster.image
    alter(cluster, [1, 2, 3])
    assert lines(before, cluster) == [("reassignments are complete", 1)]
