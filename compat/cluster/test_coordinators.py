"""R11 on real processes: the coordinator of two groups dies or hangs while members of the classic one join, sync and
commit. The other group speaks the protocol of KIP-848.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.consumer_members import (
    CONSUMER_GROUP,
    FEATURES,
    HEARTBEAT,
    SETTINGS,
    ConsumerMember,
    StockConsumer,
    share,
)
from compat.cluster.nodes import QUICK_SESSIONS, Node
from compat.cluster.raw_members import GROUP, PARTITIONS, TOPIC, Client, Member, Reader, coordinator
from compat.kafka import libraries
from compat.oracle.groups import LOADING, NOT_AVAILABLE, NOT_COORDINATOR
from compat.torture.load import Plan, Recorder, create_topic
from compat.waiting import until
from kbroker.testing.checkers import Allowances
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import Function, Type

PATIENCE_S = 60.0
ROUNDS = 10
TRIES = 5


class Clients:
    """All clients: members of the classic group and of that of KIP-848, and a reader of the offsets of each."""

    def __init__(self, cluster: ProcessCluster, recorder: Recorder, *, stable: bool) -> None:
        numbers = itertools.count(1)
        common = (cluster, recorder, lambda: next(numbers))
        self.classic = [Member(f"m{number}", *common) for number in range(3)]
        self.raw = [ConsumerMember(f"c{number}", *common) for number in range(2)]
        self.stock = StockConsumer("librdkafka", *common)
        self.readers = [
            Reader(f"reader of {group}", cluster, recorder, stable=stable, group=group)
            for group in (GROUP, CONSUMER_GROUP)
        ]

    @property
    def speakers(self) -> list[Client]:
        return [*self.classic, *self.raw, *self.readers]

    def is_settled(self) -> bool:
        """Whether each group owns all partitions, the classic one in one generation."""
        owned = sorted(itertools.chain.from_iterable(list(each.owned) for each in self.classic))
        is_one = len({each.generation for each in self.classic}) == 1
        return owned == list(range(PARTITIONS)) and is_one and share([*self.raw, self.stock])


def coordinating(cluster: ProcessCluster) -> Node:
    """The broker that coordinates the group."""
    found: list[Node] = []

    def known() -> bool:
        try:
            address = coordinator(cluster)
        except OSError:
            return False
        found[:] = [node for node in cluster.brokers.values() if node.address == address]
        return True

    until(known, patience_s=PATIENCE_S)
    return found[0]


def work_again(clients: Clients) -> None:
    """Wait until the groups are settled and all clients have worked for some rounds."""
    until(clients.is_settled, patience_s=PATIENCE_S)
    goals = [(each, each.rounds + ROUNDS) for each in (*clients.speakers, clients.stock)]
    until(lambda: all(each.rounds > goal for each, goal in goals), patience_s=PATIENCE_S)
    until(clients.is_settled, patience_s=PATIENCE_S)


def stop_in(phase: str, cluster: ProcessCluster, clients: Clients, *, hangs: bool) -> bool:
    """Kill or pause the coordinator while a request of this kind runs; then start it and move the group back to it.

    Returns whether such a request failed; it may have been answered just before the fault.
    """

    def runs() -> bool:
        for each in (*clients.classic, *clients.raw):
            each.rejoins = phase != "OffsetCommit"
        return any(each.phase == phase for each in members)

    members = clients.classic
    cluster.await_isrs(None, *cluster.brokers)
    node, admin = coordinating(cluster), AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    until(runs, each_s=0.001, patience_s=PATIENCE_S)
    before = sum(each.failures[phase] for each in members)
    (node.pause if hangs else node.kill)()
    until(lambda: coordinating(cluster) is not node, patience_s=PATIENCE_S)
    work_again(clients)
    after = sum(each.failures[phase] for each in members)
    (node.resume if hangs else node.start)()
    cluster.await_isrs(None, *cluster.brokers)
    admin.elect_leaders(ElectionType.PREFERRED).result(30)
    until(lambda: coordinating(cluster) is node, patience_s=PATIENCE_S)
    work_again(clients)
    return after > before


@pytest.mark.parametrize(
    ("controller", "brokers", "hangs"),
    [(KBROKER, (KBROKER,) * 3, False), (KAFKA, (KBROKER, KAFKA, KBROKER), True)],
    ids=["killed", "hanging-mixed"],
)
def test_r11_k10_holds_when_coordinators_die_in_joins_syncs_and_commits(
    tmp_path: Path, controller: str, brokers: tuple[str, ...], hangs: bool
) -> None:
    """After each fault the coordinator moves back to the preferred leader, while members are connected to the other."""
    libraries()
    recorder = Recorder()
    settings = {**QUICK_SESSIONS, **SETTINGS}
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ProcessCluster(tmp_path, controllers=[controller], brokers=brokers, settings=settings, features=FEATURES)
        )
        cluster.start()
        create_topic(cluster.bootstrap_servers, Plan(TOPIC, partitions=PARTITIONS, replicas=3))
        clients = Clients(cluster, recorder, stable=KAFKA in brokers)
        for client in (*clients.speakers, clients.stock):
            stack.enter_context(client)
        work_again(clients)
        for phase in ("JoinGroup", "SyncGroup", "OffsetCommit"):
            hit = any(stop_in(phase, cluster, clients, hangs=hangs) for _ in range(TRIES))
            assert hit, f"no {phase} failed in {TRIES} faults"
    allowed = Allowances(consumer_groups=frozenset({CONSUMER_GROUP}))
    assert check_groups(recorder.history(), allowed) == []
    of_stock = Counter(event.type for event in recorder.history() if event.process == clients.stock.name)
    assert of_stock[Type.OK] > ROUNDS
    for function in (Function.COMMIT, Function.COMMITTED):
        assert recorder.counts[function, Type.OK] > 200
    assert sum(each.failures[HEARTBEAT] + each.failures["OffsetCommit"] for each in clients.raw) > 0
    codes = sum((client.codes for client in clients.speakers), Counter())
    assert codes[NOT_COORDINATOR] + codes[NOT_AVAILABLE] + codes[LOADING] > 0, codes
