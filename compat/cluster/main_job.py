"""The main job of a cluster on real input: `python -m compat.cluster.main_job`.

kcat writes a log file of this machine, numbered and repeated to at least 100,000 lines, line by line with an idempotent
producer to a topic of six partitions and three replicas. Meanwhile the leader of partition 0 is killed with `kill -9`
five times in a row: each time its successor is next. A group of librdkafka reads at the same time. The judge:

    the lines read are the lines of the file, once each, in order by key
    the replicas of each partition are equal byte for byte

A reader may receive a record again after a rebalance, but then it must be the same one at the same offset.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from compat.cluster.nodes import KAFKA, KBROKER, ProcessCluster
from compat.kafka.libraries import executable
from compat.main_job import LEAST_LINES, PARTITIONS, input_lines, source_file
from compat.oracle.raw import connected
from compat.waiting import until

TOPIC, GROUP, REPLICAS, KILLS = "main-job", "readers", 3, 5
PATIENCE_S = 120.0
QUICK_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A dead broker is noticed after 3 s, so that five deaths take less time."""


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


@dataclass(frozen=True)
class Result:
    """The findings; all counts but lines, kills and seconds are to be 0."""

    source: str
    lines: int
    kills: int
    missing: int
    duplicates: int
    foreign: int
    out_of_order: int
    changed: int
    unequal_replicas: int
    seconds: float

    @property
    def good(self) -> bool:
        lost = self.missing + self.duplicates + self.foreign + self.out_of_order + self.changed + self.unequal_replicas
        return lost == 0 and self.kills == KILLS


def run(cluster: ProcessCluster, *, count: int = LEAST_LINES) -> Result:
    """Run the job on a cluster that is not started yet."""
    cluster.start()
    began = time.perf_counter()
    source = source_file()
    lines = input_lines(source, count)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=REPLICAS, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[TOPIC].result(30)
    until(lambda: in_sync(cluster) == {REPLICAS}, patience_s=PATIENCE_S)
    reader = Reader()
    reading = threading.Thread(target=reader.run, args=(cluster.bootstrap_servers,))
    reading.start()
    try:
        kills = _produce_and_kill(cluster, lines)
        until(lambda: reader.count >= len(lines), patience_s=PATIENCE_S)
    finally:
        reader.done.set()
        reading.join()
    until(lambda: in_sync(cluster) == {REPLICAS}, patience_s=PATIENCE_S)
    unequal = [index for index in range(PARTITIONS) if not replicas_equal(cluster, TOPIC, index)]
    took = time.perf_counter() - began
    return _judge(source, lines, reader, kills=kills, unequal=len(unequal), seconds=took)


def in_sync(cluster: ProcessCluster) -> set[int]:
    """The different sizes of the ISRs of the topic's partitions; empty while no broker answers."""
    try:
        asked = next(each for each, node in cluster.brokers.items() if node.is_running)
        topics = cluster.metadata(asked, [TOPIC])["Topics"]
    except (OSError, StopIteration, AssertionError):
        return set()
    return {len(part["IsrNodes"]) for topic in topics for part in topic["Partitions"]} or {0}


def replicas_equal(cluster: ProcessCluster, topic: str, partition: int) -> bool:
    """Wait a moment until all replicas have all bytes; return whether they are equal."""
    for _ in range(100):
        logs = [cluster.log_bytes(broker, topic, partition) for broker in cluster.brokers]
        if all(log == logs[0] for log in logs):
            return True
        time.sleep(0.1)
    return False


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
    """Let kcat write all lines and chase the leader of partition 0. Returns the number of kills."""
    with tempfile.TemporaryFile() as complaints:
        producer = subprocess.Popen(
            [
                executable("kcat", hint="install kcat 1.7.1"),
                *("-b", cluster.bootstrap_servers, "-P", "-t", TOPIC, "-E", "-K", "|", "-z", "zstd"),
                *("-X", "enable.idempotence=true", "-X", "batch.num.messages=200", "-X", "linger.ms=5"),
                *("-X", "reconnect.backoff.ms=50", "-X", "reconnect.backoff.max.ms=500"),
            ],
            stdin=subprocess.PIPE,
            stderr=complaints,
        )
        gates = {len(lines) * (number + 1) // (KILLS + 2): threading.Event() for number in range(KILLS)}
        feeder = threading.Thread(target=_feed, args=(lines, producer, gates))
        feeder.start()
        kills = 0
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
        feeder.join()
        producer.wait(PATIENCE_S)
        complaints.seek(0)
        said = complaints.read()[-2000:].decode(errors="replace")
        assert producer.returncode == 0, f"kcat ended with {producer.returncode}: {said}"
    return kills


def _feed(lines: Sequence[bytes], kcat: subprocess.Popen[bytes], pause_at: dict[int, threading.Event]) -> None:
    assert kcat.stdin is not None
    for number, line in enumerate(lines):
        if number in pause_at:
            kcat.stdin.flush()
            pause_at[number].wait()
        kcat.stdin.write(line + b"\n")
    kcat.stdin.close()


def _judge(source: Path, lines: Sequence[bytes], reader: Reader, *, kills: int, unequal: int, seconds: float) -> Result:
    sent = Counter(lines)
    parts = [[record for _, record in sorted(part.items())] for part in reader.found.values()]
    got = Counter(key + b"|" + value for part in parts for key, value in part)
    disorder = 0
    last: dict[bytes, int] = {}
    for key, value in itertools.chain.from_iterable(parts):
        number = int(value[:8])
        disorder += number <= last.get(key, -1)
        last[key] = number
    return Result(
        source=source.name,
        lines=len(lines),
        kills=kills,
        missing=sum((sent - got).values()),
        duplicates=sum(max(times - 1, 0) for times in got.values()),
        foreign=sum(times for line, times in got.items() if line not in sent),
        out_of_order=disorder,
        changed=len(reader.changed),
        unequal_replicas=unequal,
        seconds=seconds,
    )


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
