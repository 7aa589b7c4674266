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
from compat.cluster.main_job import QUICK_SESSIONS
from compat.cluster.nodes import Node
from compat.cluster.raw_members import PARTITIONS, TOPIC, Member, Reader, coordinator
from compat.kafka import libraries
from compat.oracle.groups import LOADING, NOT_AVAILABLE, NOT_COORDINATOR
from compat.torture.load import Plan, Recorder, create_topic
from compat.waiting import until
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import Function, Type

PATIENCE_S = 60.0
ROUNDS = 10


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


def work_again(members: list[Member]) -> None:
    """Wait until all members are in one generation, own all partitions, and have worked for some rounds since."""

    def settled() -> bool:
        owned = sorted(itertools.chain.from_iterable(list(each.owned) for each in members))
        return owned == list(range(PARTITIONS)) and len({each.generation for each in members}) == 1

    until(settled, patience_s=PATIENCE_S)
    before = [each.rounds for each in members]
    until(lambda: all(e.rounds > n + ROUNDS for e, n in zip(members, before, strict=True)), patience_s=PATIENCE_S)
    until(settled, patience_s=PATIENCE_S)


def await_full(cluster: ProcessCluster) -> None:
    """Wait until all replicas are in sync, so that the next broker may die."""

    def full() -> bool:
        try:
            topics = cluster.metadata(1, None)["Topics"]
        except (OSError, AssertionError):
            return False
        return all(len(part["IsrNodes"]) == 3 for topic in topics for part in topic["Partitions"])

    cluster.await_brokers(*cluster.brokers)
    until(full, patience_s=PATIENCE_S)


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
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        members = [Member(f"m{number}", cluster, recorder, lambda: next(offsets)) for number in range(3)]
        clients = [*members, Reader("reader", cluster, recorder)]
        for client in clients:
            stack.enter_context(client)
        work_again(members)
        for member, phase in zip(members, ("JoinGroup", "SyncGroup", "OffsetCommit"), strict=True):
            await_full(cluster)
            node = coordinating(cluster)
            member.rejoins = phase != "OffsetCommit"
            until(lambda: any(each.phase == phase for each in members), each_s=0, patience_s=PATIENCE_S)  # noqa: B023
            (node.pause if hangs else node.kill)()
            until(lambda: coordinating(cluster) is not node, patience_s=PATIENCE_S)  # noqa: B023
            work_again(members)
            (node.resume if hangs else node.start)()
            await_full(cluster)
            admin.elect_leaders(ElectionType.PREFERRED).result(30)
            until(lambda: coordinating(cluster) is node, patience_s=PATIENCE_S)  # noqa: B023
            work_again(members)
        reads = clients[-1].rounds
        until(lambda: clients[-1].rounds > reads + 2, patience_s=PATIENCE_S)
    assert check_groups(recorder.history()) == []
    for function in (Function.COMMIT, Function.COMMITTED):
        assert recorder.counts[function, Type.OK] > 200
    codes = sum((client.codes for client in clients), Counter())
    assert codes[NOT_COORDINATOR] + codes[NOT_AVAILABLE] + codes[LOADING] > 0, codes
