"""The rows about transactions, idempotent producers, read_committed readers and groups of KIP-848."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from compat.bench.cluster_rows import KAFKA_OPTIONS, NAMES, create
from compat.bench.rivals import Rival, measure, rivals
from compat.bench.sizes import FULL, Figures, Row, Size, at_least_times, at_most_times
from compat.cluster.nodes import KAFKA, KBROKER, ProcessCluster
from compat.features import finalized, raise_features
from compat.oracle.raw import connected
from compat.waiting import until

NEWEST = {"transaction.version": 2, "group.version": 1}
MEMBERS = 50
ABORTED_EVERY, BATCHES = 10, 10
SEGMENTS, PRODUCERS, SEGMENT_BYTES = 200, 10_000, 1 << 20
REPLICAS = 3

TRANSACTION_ROWS = [
    Row(
        "idempotent-p50", "idempotent Produce of 100 B in turn with a plain one: p50", "us", "<= 1.1 x plain",
        lambda ours, _, figures: ours <= 1.1 * figures.get("idempotent-plain-p50", ours),
    ),
    Row("idempotent-plain-p50", "the plain one", "us", "none", lambda *_: True),
    Row(
        "idempotent-16k", "idempotent Produce of 16 KiB in turn with a plain one", "MB/s", ">= 0.9 x plain",
        lambda ours, _, figures: ours >= 0.9 * figures.get("idempotent-plain-16k", ours),
    ),
    Row("idempotent-plain-16k", "the plain one of 16 KiB", "MB/s", "none", lambda *_: True),
    Row("txn", "transactions of 100 records, one after the other", "1/s", ">= 1 x", at_least_times(1)),
    Row("txn-commit", "the same: commit, p50", "us", "<= 1 x", at_most_times(1)),
    Row("txn-fetch", "read_committed Fetch of a log with 10 % aborted", "MB/s", ">= 1 x", at_least_times(1)),
    Row("kip848", "50 members of KIP-848 join until all are stable", "ms", "<= 1 x", at_most_times(1)),
    Row("rf3-txn", "three replicas: transactions of 100 records", "1/s", ">= 1 x", at_least_times(1)),
    Row("rf3-txn-commit", "three replicas: commit, p50", "us", "<= 1 x", at_most_times(1)),
    Row(
        "producers", "kill -9 with 200 segments and 10,000 producer ids, start until the log answers", "s",
        "<= 0.5 x", at_most_times(0.5),
    ),
]  # fmt: skip


def newest(servers: str) -> None:
    """Raise the features that the clients need."""
    found = finalized(servers)
    raise_features(servers, {name: level for name, level in NEWEST.items() if found.get(name, 0) < level})


def idempotent(rival: Rival, size: Size) -> Figures:
    """Idempotent and plain Produce in turn."""
    figures: Figures = {}
    for key, records, record_bytes, count in (("p50", 1, 100, size.latency), ("16k", 16, 1_000, size.batches[1])):
        topic = rival.topic("idempotent")
        job = {"records": records, "record_bytes": record_bytes}
        rival.measure("idempotent", topic, **job, count=count // 10)
        found = rival.measure("idempotent", topic, **job, count=count)
        unit = "us" if key == "p50" else "mb_s"
        figures |= {f"idempotent-{key}": found[f"idempotent_{unit}"], f"idempotent-plain-{key}": found[f"plain_{unit}"]}
        rival.delete(topic)
    return figures


def transactions(rival: Rival, size: Size) -> Figures:
    """One round of transactions on one broker, of reading them and of joining a group."""
    newest(rival.servers)
    topic = rival.topic("transactions")
    count = size.latency // 5
    rival.measure("transactions", topic, count=count // 2)
    found = rival.measure("transactions", topic, count=count)
    rival.delete(topic)
    logs = rival.topic("aborted", partitions=4)
    job = {"partitions": 4, "megabytes": 64 if size is FULL else 8}
    rival.measure("fill_transactions", logs, **job, aborted_every=ABORTED_EVERY, batches=BATCHES)
    rival.measure("fetch", logs, partitions=4, gigabytes=size.fetch_gigabytes / 4, isolation=1)
    read = rival.measure("fetch", logs, partitions=4, gigabytes=size.fetch_gigabytes, isolation=1)
    rival.delete(logs)
    shared = rival.topic("consumers", partitions=MEMBERS)
    joined = rival.measure("join_consumers", shared, members=MEMBERS, count=10 if size is FULL else 2)
    rival.delete(shared)
    return {"txn": found["per_s"], "txn-commit": found["p50_us"], "txn-fetch": read["mb_s"], "kip848": joined["ms"]}


def transactions_on_three(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Transactions on clusters of three brokers and one controller."""
    found: dict[str, list[Figures]] = {}
    for kind in (KAFKA, KBROKER):
        if kind not in which:
            continue
        with ProcessCluster(
            directory / kind, controllers=[kind], brokers=[kind] * REPLICAS, options=KAFKA_OPTIONS
        ) as running:
            running.start()
            newest(running.bootstrap_servers)
            create(running, "transactions")
            leader = running.brokers[running.leader("transactions")].address
            measure("transactions", leader, "transactions", count=2_000)
            for _ in range(rounds):
                figures = measure("transactions", leader, "transactions", count=1_000)
                found.setdefault(NAMES[kind], []).append(
                    {"rf3-txn": figures["per_s"], "rf3-txn-commit": figures["p50_us"]}
                )
    return found


def many_producers(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Kill each broker after a topic got 200 segments from 10,000 producers, and start it until the log answers."""
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which) as started:
        for rival in started:
            for _ in range(rounds):
                rival.timed_start()
                topic = rival.topic("producers", configs={"segment.bytes": str(SEGMENT_BYTES)})
                batch_bytes = SEGMENTS * SEGMENT_BYTES // PRODUCERS
                filled = rival.measure("fill_producers", topic, producers=PRODUCERS, batch_bytes=batch_bytes)
                rival.broker.kill()
                began = time.perf_counter()
                rival.timed_start()
                until(partial(_answers, rival.servers, topic, int(filled["end"])), each_s=0.01)
                found.setdefault(rival.name, []).append({"producers": time.perf_counter() - began})
                rival.delete(topic)
                rival.broker.stop()
    return found


def _answers(servers: str, topic: str, end: int) -> bool:
    asked = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]
    try:
        with connected(servers) as connection:
            answer = connection.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": asked})
    except OSError:
        return False
    (part,) = answer["Topics"][0]["Partitions"]
    return bool(part["ErrorCode"] == 0 and part["Offset"] == end)
