"""R11 on real processes: the coordinator of a group dies or hangs while its members join, sync and commit."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.nodes import QUICK_SESSIONS, Node
from compat.cluster.raw_members import PARTITIONS, TOPIC, Member, Reader, coordinator
from compat.kafka import libraries
from compat.oracle.groups import LOADING, NOT_AVAILABLE, NOT_COORDINATOR
from compat.torture.load import Plan, Recorder, create_topic
from compat.waiting import until
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import Function, Type

PATIENCE_S = 60.0
ROUNDS = 10
TRIES = 5


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


def work_again(members: list[Member], reader: Reader) -> None:
    """Wait until all members are in one generation, own all partitions, and all clients have worked for some rounds."""

    def settled() -> bool:
        owned = sorted(itertools.chain.from_iterable(list(each.owned) for each in members))
        return owned == list(range(PARTITIONS)) and len({each.generation for each in members}) == 1

    until(settled, patience_s=PATIENCE_S)
    goals = [(each, each.rounds + ROUNDS) for each in (*members, reader)]
    until(lambda: all(each.rounds > goal for each, goal in goals), patience_s=PATIENCE_S)
    until(settled, patience_s=PATIENCE_S)


def stop_in(phase: str, cluster: ProcessCluster, members: list[Member], reader: Reader, *, hangs: bool) -> bool:
    """Kill or pause the coordinator while a request of this kind runs; then start it and move the group back to it.

    Returns whether such a request failed; it may have been answered just before the fault.
    """

    def runs() -> bool:
        for each in members:
            each.rejoins = phase != "OffsetCommit"
        return any(each.phase == phase for each in members)

    cluster.await_isrs(None, *cluster.brokers)
    node, admin = coordinating(cluster), AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    until(runs, each_s=0.001, patience_s=PATIENCE_S)
    before = sum(each.failures[phase] for each in members)
    (node.pause if hangs else node.kill)()
    until(lambda: coordinating(cluster) is not node, patience_s=PATIENCE_S)
    work_again(members, reader)
    after = sum(each.failures[phase] for each in members)
    (node.resume if hangs else node.start)()
    cluster.await_isrs(None, *cluster.brokers)
    admin.elect_leaders(ElectionType.PREFERRED).result(30)
    until(lambda: coordinating(cluster) is node, patience_s=PATIENCE_S)
    work_again(members, reader)
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
    recorder, offsets = Recorder(), itertools.count(1)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ProcessCluster(tmp_path, controllers=[controller], brokers=brokers, settings=QUICK_SESSIONS)
        )
        cluster.start()
        create_topic(cluster.bootstrap_servers, Plan(TOPIC, partitions=PARTITIONS, replicas=3))
        members = [Member(f"m{number}", cluster, recorder, lambda: next(offsets)) for number in range(3)]
        reader = Reader("reader", cluster, recorder, stable=KAFKA in brokers)
        for client in (*members, reader):
            stack.enter_context(client)
        work_again(members, reader)
        for phase in ("JoinGroup", "SyncGroup", "OffsetCommit"):
            hit = any(stop_in(phase, cluster, members, reader, hangs=hangs) for _ in range(TRIES))
            assert hit, f"no {phase} failed in {TRIES} faults"
    assert check_groups(recorder.history()) == []
    for function in (Function.COMMIT, Function.COMMITTED):
        assert recorder.counts[function, Type.OK] > 200
    codes = sum((client.codes for client in (*members, reader)), Counter())
    assert codes[NOT_COORDINATOR] + codes[NOT_AVAILABLE] + codes[LOADING] > 0, codes
