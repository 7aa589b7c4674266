"""Clusters of three brokers and one controller: three replicas, min.insync.replicas=2."""

from __future__ import annotations

import itertools
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compat.bench.frames import batch_of_now, produce_frame, receive
from compat.bench.rivals import measure
from compat.bench.sizes import Figures, Row, at_least_times, at_most, at_most_times
from compat.cluster.nodes import KAFKA, KBROKER, Node, ProcessCluster
from compat.oracle.batches import Item
from compat.oracle.raw import connected
from compat.oracle.schema import decode_response
from compat.processes import cpu_seconds, resident_mib
from compat.waiting import until

REPLICAS, MIN_IN_SYNC = 3, 2
CATCH_UP_GB = 2.0
DEATHS = 10
IDLE_PARTITIONS = 1000
IDLE_S = 20.0
PATIENCE_S = 180.0
# The heap of a small broker, as in kafka-server-start.sh with KAFKA_HEAP_OPTS; the collector is the installation's.
KAFKA_OPTIONS = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
NAMES = {KAFKA: "Apache Kafka 4.3.1", KBROKER: "kbroker"}

CLUSTER_ROWS = [
    Row("rf3-p50", "three replicas: Produce of one 100 B record, acks=all: p50", "us", "<= 1 x", at_most_times(1)),
    Row("rf3-p99", "three replicas: the same Produce: p99", "us", "<= 1 x", at_most_times(1)),
    Row("rf3-16k", "three replicas: Produce of 16 KiB batches, 5 in flight", "MB/s", ">= 1 x", at_least_times(1)),
    Row("catch-up", "an empty follower catches up with 2 GB", "MB/s", ">= 1.2 x", at_least_times(1.2)),
    Row("catch-up-cpu", "the same: CPU time of leader and follower", "s/GB", "<= 0.7 x", at_most_times(0.7)),
    Row("failover", "kill -9 of a leader to the next acknowledged record", "s", "<= 1 x", at_most_times(1)),
    Row("restart-gap", "clean restart of a broker: longest gap of a producer", "s", "<= 1 x", at_most_times(1)),
    Row("rf3-idle-cpu", "1,000 partitions of 3 replicas, idle: CPU of a broker", "%", "<= 0.5 x", at_most_times(0.5)),
    Row("rf3-resident", "the same: resident memory of a broker", "MiB", "<= 0.25 x", at_most_times(0.25)),
    Row("rf3-start", "one controller and three brokers: empty directory to all unfenced", "s", "<= 2 s", at_most(2)),
]


def cluster(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """All rows of both clusters, one after the other, each round on a new cluster."""
    found: dict[str, list[Figures]] = {}
    for number, kind in itertools.product(range(rounds), (KAFKA, KBROKER)):
        if kind not in which:
            continue
        with ProcessCluster(
            directory / f"{kind}-{number}",
            controllers=[kind],
            brokers=[kind] * REPLICAS,
            settings={"min.insync.replicas": str(MIN_IN_SYNC)},
            options=KAFKA_OPTIONS,
        ) as running:
            figures = {"rf3-start": running.start()}
            figures |= _produce(running)
            figures |= _catch_up(running)
            figures |= _deaths(running)
            figures |= _clean_restart(running)
            figures |= _idle(running)
        found.setdefault(NAMES[kind], []).append(figures)
    return found


def create(running: ProcessCluster, topic: str, *, partitions: int = 1) -> None:
    """Create a topic with three replicas, and wait until all are in sync."""
    wanted = {"Name": topic, "NumPartitions": partitions, "ReplicationFactor": REPLICAS, "Configs": []}
    with connected(running.brokers[1].address, timeout_s=120) as connection:
        answer = connection.call("CreateTopics", 5, {"Topics": [wanted], "timeoutMs": 120_000})
    assert answer["Topics"][0]["ErrorCode"] == 0, answer
    running.await_isrs(topic, *running.brokers, patience_s=PATIENCE_S)


def _produce(running: ProcessCluster) -> Figures:
    create(running, "latency")
    leader = running.brokers[running.leader("latency")]
    measure("latency", leader.address, "latency", count=20_000)
    latency = measure("latency", leader.address, "latency", count=10_000)
    create(running, "throughput")
    leader = running.brokers[running.leader("throughput")]
    job = {"batch_bytes": 16 << 10}
    measure("throughput", leader.address, "throughput", **job, count=3_000)
    rate = measure("throughput", leader.address, "throughput", **job, count=10_000)
    return {"rf3-p50": latency["p50_us"], "rf3-p99": latency["p99_us"], "rf3-16k": rate["mb_s"]}


def _catch_up(running: ProcessCluster) -> Figures:
    """Stop a follower of an empty topic, write 2 GB, start the follower, and wait until it is in sync.

    The rate counts what the follower copies after the cluster knows that it runs.
    """
    create(running, "catch-up")
    leader = running.leader("catch-up")
    follower = running.brokers[next(each for each in running.brokers if each != leader)]
    follower.stop()
    count = int(CATCH_UP_GB * 1e9) // (900 << 10)
    measure("throughput", running.brokers[leader].address, "catch-up", batch_bytes=900 << 10, count=count)
    follower.start()
    running.await_brokers(*running.brokers)
    ends = (running.brokers[leader], follower)
    already, began = len_of_log(follower, "catch-up"), time.perf_counter()
    before = sum(cpu_seconds(node.pid) for node in ends)
    running.await_isrs("catch-up", *running.brokers, each_s=0.01, patience_s=PATIENCE_S)
    took, spent = time.perf_counter() - began, sum(cpu_seconds(node.pid) for node in ends) - before
    copied = len_of_log(follower, "catch-up") - already
    return {"catch-up": copied / took / 1e6, "catch-up-cpu": spent / (copied / 1e9)}


def len_of_log(node: Node, topic: str, partition: int = 0) -> int:
    """The bytes in a replica's segments."""
    return sum(segment.stat().st_size for segment in (node.data / f"{topic}-{partition}").glob("*.log"))


@dataclass
class Writer:
    """Writes one record after another with acks=all, looks for the leader after each failure, and notes when each
    record was acknowledged.
    """

    running: ProcessCluster
    topic: str
    acknowledged: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        frame = produce_frame(self.topic, batch_of_now([Item(b"x" * 100)]))
        while not self.done.is_set():
            try:
                leader = self.running.leader(self.topic)
                if leader < 0:
                    time.sleep(0.02)
                    continue
                host, _, port = self.running.brokers[leader].address.rpartition(":")
                with socket.create_connection((host, int(port)), timeout=2) as connection:
                    while not self.done.is_set():
                        connection.sendall(frame)
                        if _error_code(receive(connection)):
                            break
                        self.acknowledged.append(time.perf_counter())
            except (OSError, AssertionError, StopIteration):
                time.sleep(0.02)

    def longest_gap(self, since: float) -> float:
        times = [since, *(each for each in self.acknowledged if each > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def _error_code(reply: bytes) -> int:
    answer = decode_response("Produce", 7, reply[4:])
    return int(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"])


@contextmanager
def _writing(running: ProcessCluster, topic: str) -> Iterator[Writer]:
    writer = Writer(running, topic)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        until(lambda: len(writer.acknowledged) > 100, patience_s=PATIENCE_S)
        yield writer
    finally:
        writer.done.set()
        thread.join()


def _deaths(running: ProcessCluster) -> Figures:
    """Kill the leader, wait for the next acknowledged record, start it again; the median of DEATHS."""
    create(running, "failover")
    gaps = []
    with _writing(running, "failover") as writer:
        for _ in range(DEATHS):
            leader = running.leader("failover")
            running.brokers[leader].kill()
            killed = time.perf_counter()
            until(lambda killed=killed: writer.acknowledged[-1] > killed, each_s=0.001, patience_s=PATIENCE_S)
            gaps.append(next(each for each in writer.acknowledged if each > killed) - killed)
            running.brokers[leader].start()
            running.await_brokers(*running.brokers)
            running.await_isrs("failover", *running.brokers, patience_s=PATIENCE_S)
    return {"failover": statistics.median(gaps)}


def _clean_restart(running: ProcessCluster) -> Figures:
    create(running, "restart")
    with _writing(running, "restart") as writer:
        node = running.brokers[running.leader("restart")]
        began = time.perf_counter()
        node.stop()
        node.start()
        running.await_brokers(*running.brokers)
        running.await_isrs("restart", *running.brokers, patience_s=PATIENCE_S)
    return {"restart-gap": writer.longest_gap(began)}


def _idle(running: ProcessCluster) -> Figures:
    create(running, "many", partitions=IDLE_PARTITIONS)
    time.sleep(10)
    nodes = list(running.brokers.values())
    before = sum(cpu_seconds(node.pid) for node in nodes)
    time.sleep(IDLE_S)
    spent = (sum(cpu_seconds(node.pid) for node in nodes) - before) / len(nodes)
    resident = statistics.mean(resident_mib(node.pid) for node in nodes)
    return {"rf3-idle-cpu": 100 * spent / IDLE_S, "rf3-resident": resident}
