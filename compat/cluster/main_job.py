"""The main job of a cluster on real input: `python -m compat.cluster.main_job`.

kcat writes the numbered lines of `compat.main_job` with an idempotent producer to six partitions with three replicas
each, and a consumer group of librdkafka reads them at the same time. While both run, the leader of partition 0 is
killed with `kill -9`, then the next leader, and so on, five times; each killed broker starts again.

The job has succeeded if the group has read each line exactly once and in the order of the log, and if all replicas of
each partition have the same bytes. After a rebalance the group may read a record again, but it must be the same record
at the same offset.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from compat.cluster.nodes import KAFKA, KBROKER, QUICK_SESSIONS, ProcessCluster
from compat.main_job import LEAST_LINES, PARTITIONS, TOPIC, Differences, compare, input_lines, kcat_writes, source_file
from compat.oracle.raw import connected
from compat.waiting import until

GROUP, REPLICAS, KILLS = "readers", 3, 5
PATIENCE_S = 120.0


@dataclass
class Reader:
    """What the group has read: partition -> offset -> key and value."""

    found: dict[int, dict[int, tuple[bytes, bytes]]] = field(
        default_factory=lambda: {index: {} for index in range(PARTITIONS)}
    )
    changed: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, servers: str) -> None:
        """Read and commit until `done`."""
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 6000,
                "isolation.level": "read_uncommitted",
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not self.done.is_set():
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                part, offset = self.found[message.partition()], message.offset()
                record = (message.key() or b"", message.value() or b"")
                if part.setdefault(offset, record) != record:
                    self.changed.append(f"{message.partition()}@{offset}")
        finally:
            consumer.close()

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def in_order(self) -> list[list[tuple[bytes, bytes]]]:
        """The records of each partition in the order of its log."""
        return [[record for _, record in sorted(part.items())] for part in self.found.values()]


@dataclass(frozen=True)
class Result:
    """The findings. `changed` counts records that were different when they were read again."""

    source: str
    lines: int
    kills: int
    differences: Differences
    changed: int
    has_equal_replicas: bool
    seconds: float

    @property
    def good(self) -> bool:
        return not any(self.differences) and not self.changed and self.has_equal_replicas and self.kills == KILLS


def run(cluster: ProcessCluster, *, count: int = LEAST_LINES) -> Result:
    """Run the job on a cluster that is not started yet."""
    cluster.start()
    began = time.perf_counter()
    source = source_file()
    lines = input_lines(source, count)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=REPLICAS, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[TOPIC].result(30)
    cluster.await_isrs(TOPIC, *cluster.brokers, patience_s=PATIENCE_S)
    reader = Reader()
    reading = threading.Thread(target=reader.run, args=(cluster.bootstrap_servers,))
    reading.start()
    try:
        kills = _produce_and_kill(cluster, lines)
        until(lambda: reader.count >= len(lines), patience_s=PATIENCE_S)
    finally:
        reader.done.set()
        reading.join()
    cluster.await_isrs(TOPIC, *cluster.brokers, patience_s=PATIENCE_S)
    return Result(
        source=source.name,
        lines=len(lines),
        kills=kills,
        differences=compare(lines, reader.in_order()),
        changed=len(reader.changed),
        has_equal_replicas=cluster.replicas_become_equal(TOPIC, range(PARTITIONS)),
        seconds=time.perf_counter() - began,
    )


def _written(cluster: ProcessCluster) -> int:
    """The number of records in the topic, by its leaders; -1 while one is unknown."""
    total = 0
    for index in range(PARTITIONS):
        asked = [{"PartitionIndex": index, "Timestamp": -1}]
        try:
            leader = cluster.leader(TOPIC, index)
            if leader < 0:
                return -1
            with connected(cluster.brokers[leader].address) as connection:
                found = connection.call(
                    "ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": asked}]}
                )
        except (OSError, AssertionError):
            return -1
        part = found["Topics"][0]["Partitions"][0]
        if part["ErrorCode"]:
            return -1
        total += part["Offset"]
    return total


def _produce_and_kill(cluster: ProcessCluster, lines: Sequence[bytes]) -> int:
    """Let kcat write all lines, and kill one leader of partition 0 after another. Returns the number of kills."""
    gates = {len(lines) * (number + 1) // (KILLS + 2): threading.Event() for number in range(KILLS)}
    kills = 0
    with kcat_writes(lines, cluster.bootstrap_servers, pause_at=gates, records_in_batch=200):
        for place, gate in gates.items():
            until(lambda place=place: _written(cluster) > place - 5_000, patience_s=PATIENCE_S)
            gate.set()
            leader = cluster.leader(TOPIC)
            node = cluster.brokers[leader]
            node.kill()
            kills += 1
            until(lambda leader=leader: cluster.leader(TOPIC) not in (-1, leader), patience_s=PATIENCE_S)
            node.start()
            cluster.await_brokers(*cluster.brokers)
    return kills


def main() -> int:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m compat.cluster.main_job", description=__doc__)
    parser.add_argument("--controllers", default=KBROKER, help=f"comma-separated: {KBROKER} or {KAFKA} (default one)")
    parser.add_argument("--brokers", default=",".join([KBROKER] * 3), help="likewise, three brokers")
    parser.add_argument("--lines", type=int, default=LEAST_LINES)
    options = parser.parse_args()
    kinds: dict[str, Any] = {
        "controllers": options.controllers.split(","),
        "brokers": options.brokers.split(","),
        "settings": QUICK_SESSIONS,
    }
    with (
        tempfile.TemporaryDirectory(prefix="kbroker-cluster-") as directory,
        ProcessCluster(Path(directory), **kinds) as cluster,
    ):
        result = run(cluster, count=options.lines)
    print(result)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
