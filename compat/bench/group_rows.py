"""The rows about groups and about many partitions."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from compat.bench.group_worker import groups_answer
from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import FULL, Figures, Row, Size, at_least_or, at_most, at_most_times
from compat.oracle.raw import connected
from compat.waiting import until

MEMBERS, COMMITTERS = 50, 10
GROUPS, GROUP_PARTITIONS, GROUP_ROUNDS = 500, 10, 10
PARTITIONS, PARTITIONS_OF_A_TOPIC = 10_000, 1_000

GROUP_ROWS = [
    Row("rebalance", "rebalance of a group of 50 members", "ms", "<= 1 x", at_most_times(1)),
    Row("commits", "offset commits on one group by ten members", "1/s", ">= 5,000 or 1 x", at_least_or(5_000, 1)),
    Row("groups", "start with 500 groups until all answer", "s", "<= 2", at_most(2)),
    Row("ten-thousand", "start with 10,000 partitions until all answer", "s", "<= 15", at_most(15)),
    Row("ten-thousand-resident", "10,000 partitions: resident memory, idle", "MiB", "<= 300", at_most(300)),
]


def groups(rival: Rival, size: Size) -> Figures:
    """One round of the rows about groups."""
    topic = rival.topic("groups", partitions=COMMITTERS)
    count = 20 if size is FULL else 3
    rebalanced = rival.measure("rebalance", topic, members=MEMBERS, count=count)
    rival.measure("commits", topic, members=COMMITTERS, count=size.latency)
    committed = rival.measure("commits", topic, members=COMMITTERS, count=3 * size.latency)
    rival.delete(topic)
    return {"rebalance": rebalanced["ms"], "commits": committed["per_s"]}


def many_groups(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Start each broker with the offsets of 500 groups, and wait until it returns the last offsets of all of them."""
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            topic = rival.topic("many-groups", partitions=GROUP_PARTITIONS)
            job = {"groups": GROUPS, "partitions": GROUP_PARTITIONS}
            rival.measure("fill_groups", topic, **job, rounds=GROUP_ROUNDS)
            rival.broker.stop()
            for _ in range(rounds):
                began = time.perf_counter()
                rival.timed_start()
                until(partial(groups_answer, rival.servers, topic, **job, offset=GROUP_ROUNDS - 1), each_s=0.01)
                found.setdefault(rival.name, []).append({"groups": time.perf_counter() - began})
                rival.broker.stop()
    return found


def ten_thousand(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Start each broker with ten topics of a thousand partitions, wait until ListOffsets answers for each, measure
    memory.

    One round, because a slow start takes minutes.
    """
    del rounds
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            topics = [
                rival.topic("ten-thousand", partitions=PARTITIONS_OF_A_TOPIC)
                for _ in range(PARTITIONS // PARTITIONS_OF_A_TOPIC)
            ]
            rival.broker.stop()
            began = time.perf_counter()
            rival.timed_start()
            until(partial(_all_answer, rival, topics), each_s=0.05)
            took = time.perf_counter() - began
            time.sleep(5)
            figures = {"ten-thousand": took, "ten-thousand-resident": rival.resident_mib()}
            found[rival.name] = [figures]
            rival.broker.stop()
    return found


def _all_answer(rival: Rival, topics: list[str]) -> bool:
    return all(_answers(rival, topic) for topic in topics)


def _answers(rival: Rival, topic: str) -> bool:
    asked = [{"PartitionIndex": index, "Timestamp": -1} for index in range(PARTITIONS_OF_A_TOPIC)]
    with connected(rival.servers, timeout_s=60) as connection:
        answer = connection.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]})
    return all(part["ErrorCode"] == 0 for part in answer["Topics"][0]["Partitions"])
