"""The rows of the table: how each figure is measured, and its goal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from compat.bench.cluster_rows import CLUSTER_ROWS
from compat.bench.command_rows import COMMAND_ROWS, commands
from compat.bench.compaction_rows import COMPACTION_ROWS
from compat.bench.frames import PRODUCE_VERSION, batch_of_size
from compat.bench.group_rows import GROUP_ROWS, groups
from compat.bench.minio_rows import MINIO_ROWS
from compat.bench.recovery_rows import RECOVERY_ROWS
from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import FULL, Figures, Row, Size, at_least_times, at_most, at_most_times
from compat.bench.spark_rows import SPARK_ROWS
from compat.bench.tier_rows import TIER_ROWS
from compat.bench.transaction_rows import TRANSACTION_ROWS, idempotent, transactions
from compat.oracle.raw import connected
from compat.waiting import until

KIB = 1 << 10
PARTITIONS = 2000


JUDGED = [
    Row("p50", "Produce of one 100 B record, acks=all, one in flight: p50", "us", "<= 0.85 x", at_most_times(0.85)),
    Row("p99", "the same Produce: p99", "us", "<= 0.8 x", at_most_times(0.8)),
    Row("small", "Produce of 1 KiB, five in one call, one connection", "requests/s", ">= 1.4 x", at_least_times(1.4)),
    Row("small-cpu", "the same: CPU time of the broker", "us a request", "<= 0.6 x", at_most_times(0.6)),
    Row("small-4", "Produce of 1 KiB, four connections", "requests/s", ">= 1.1 x", at_least_times(1.1)),
    Row("small-4-cpu", "the same on four: CPU time of the broker", "us a request", "<= 0.6 x", at_most_times(0.6)),
    Row("900k", "Produce of 900 KiB batches, 5 in flight, one connection", "MB/s", ">= 1.2 x", at_least_times(1.2)),
    Row("900k-small", "the same with records of 100 B", "MB/s", ">= 1.2 x", at_least_times(1.2)),
    Row("16k", "Produce of 16 KiB batches", "MB/s", ">= 1.5 x", at_least_times(1.5)),
    Row("1k", "Produce of 1 KiB batches", "MB/s", ">= 1.2 x", at_least_times(1.2)),
    Row("fetch", "Fetch from the page cache, 1 MiB per partition", "MB/s", ">= 1.3 x", at_least_times(1.3)),
    Row("fetch-4", "the same Fetch on four connections", "MB/s", ">= 1.3 x", at_least_times(1.3)),
    Row(
        "fetch-4-bare",
        "the same four connections to threads that only call sendfile",
        "MB/s",
        "none",
        at_most(math.inf),
    ),
    Row("fetch-cpu", "the same Fetch: CPU time of the broker", "s/GB", "<= 0.3", at_most(0.3)),
    Row("end-to-end", "end to end with librdkafka, one record: p50", "us", "<= 1 x", at_most_times(1)),
    Row("performance", "ProducerPerformance, 1 KiB records", "records/s", ">= 1 x", at_least_times(1)),
    Row("start", "start to the first answer to ApiVersions", "s", "<= 0.25", at_most(0.25)),
    Row("resident", "resident memory, idle", "MiB", "<= 45", at_most(45)),
    Row("partitions", "start with 2,000 partitions until all answer", "s", "<= 3", at_most(3)),
    Row(
        "idle",
        "Produce with 500 idle connections: p50",
        "us",
        "<= 1.3 x one connection",
        lambda ours, _, figures: ours <= 1.3 * figures.get("p50", ours),
    ),
    *COMMAND_ROWS,
    *RECOVERY_ROWS,
    *COMPACTION_ROWS,
    *GROUP_ROWS,
    *TRANSACTION_ROWS,
    *CLUSTER_ROWS,
    *TIER_ROWS,
    *MINIO_ROWS,
    *SPARK_ROWS,
]
_ALSO_PURE = ("p50", "p99", "small", "small-cpu", "small-4", "small-4-cpu", "16k", "fetch-4", "start", "resident")
ROWS = [
    *JUDGED,
    *(
        replace(row, key=f"{row.key}-pure", title=f"pure Python: {row.title}", goal="none", reached=at_most(math.inf))
        for row in JUDGED
        if row.key in _ALSO_PURE
    ),
]


def warm_up(rival: Rival, size: Size) -> None:
    """Warm up a just-in-time compiler; Kafka needs 20,000 requests."""
    topic = rival.topic("warm")
    rival.measure("latency", topic, count=20_000 if size is FULL else 2_000)
    rival.measure("throughput", topic, batch_bytes=16 * KIB, count=size.batches[1])
    rival.measure("throughput", topic, batch_bytes=900 * KIB, count=size.batches[0])
    rival.measure("bursts", topic, batch_bytes=KIB, count=size.small)
    rival.delete(topic)


def produce_latency(rival: Rival, size: Size) -> Figures:
    topic = rival.topic("latency")
    found = rival.measure("latency", topic, count=size.latency)
    rival.delete(topic)
    return {"p50": found["p50_us"], "p99": found["p99_us"]}


def small_requests(rival: Rival, size: Size) -> Figures:
    figures = {}
    for connections, key in ((1, "small"), (4, "small-4")):
        topic = rival.topic(key, partitions=connections)
        job = {"batch_bytes": KIB, "connections": connections}
        rival.measure("bursts", topic, **job, count=size.small // 10)
        before = rival.cpu_seconds()
        found = rival.measure("bursts", topic, **job, count=size.small)
        figures[f"{key}-cpu"] = (rival.cpu_seconds() - before) / found["requests"] * 1e6
        figures[key] = found["requests_s"]
        rival.delete(topic)
    return figures


def produce_throughput(rival: Rival, size: Size) -> Figures:
    figures = {}
    large, middling, small = size.batches
    for key, kib, record_bytes, count in (
        ("900k", 900, 1000, large),
        ("900k-small", 900, 100, large),
        ("16k", 16, 1000, middling),
        ("1k", 1, 1000, small),
    ):
        topic = rival.topic(f"throughput-{key}")
        found = rival.measure("throughput", topic, batch_bytes=kib * KIB, count=count, record_bytes=record_bytes)
        figures[key] = found["mb_s"]
        rival.delete(topic)
    return figures


def fetch_from_cache(rival: Rival, size: Size) -> Figures:
    topic = rival.topic("fetch", partitions=4)
    rival.measure("fill", topic, partitions=4, megabytes=64)
    rival.measure("fetch", topic, partitions=4, gigabytes=size.fetch_gigabytes / 4)
    before = rival.cpu_seconds()
    found = rival.measure("fetch", topic, partitions=4, gigabytes=size.fetch_gigabytes)
    spent = rival.cpu_seconds() - before
    on_four = rival.measure("fetch", topic, partitions=4, gigabytes=size.fetch_gigabytes, connections=4)
    figures = {"fetch": found["mb_s"], "fetch-4": on_four["mb_s"], "fetch-cpu": spent / (found["bytes"] / 1e9)}
    if rival.name == "kbroker":
        assert rival.broker.log_directory is not None
        segments = [str(min(rival.broker.log_directory.glob(f"{topic}-{number}/*.log"))) for number in range(4)]
        bare = rival.measure("bare_fetch", topic, segments=segments, gigabytes=size.fetch_gigabytes, connections=4)
        figures["fetch-4-bare"] = bare["mb_s"]
    rival.delete(topic)
    return figures


def end_to_end(rival: Rival, size: Size) -> Figures:
    topic = rival.topic("end-to-end")
    found = rival.measure("end_to_end", topic, count=size.end_to_end)
    rival.delete(topic)
    return {"end-to-end": found["p50_us"]}


def producer_performance(rival: Rival, size: Size) -> Figures:
    topic = rival.topic("performance")
    figure = rival.producer_performance(topic, records=size.performance_records)
    rival.delete(topic)
    return {"performance": figure}


def idle_connections(rival: Rival, size: Size) -> Figures:
    topic = rival.topic("idle")
    found = rival.measure("latency", topic, count=size.latency, idle_connections=500)
    rival.delete(topic)
    return {"idle": found["p50_us"]}


# Measurements in rounds, on warm running brokers, one after the other.
ROUND: dict[str, Callable[[Rival, Size], Figures]] = {
    "latency": produce_latency,
    "small": small_requests,
    "throughput": produce_throughput,
    "fetch": fetch_from_cache,
    "end-to-end": end_to_end,
    "performance": producer_performance,
    "idle": idle_connections,
    "commands": commands,
    "groups": groups,
    "idempotent": idempotent,
    "transactions": transactions,
}


def start_and_memory(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Start each broker, alone on the machine, on a formatted and empty directory; then measure its memory."""
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            rival.broker.stop()
            for _ in range(rounds):
                took = rival.timed_start()
                time.sleep(2)
                found.setdefault(rival.name, []).append({"start": took, "resident": rival.resident_mib()})
                rival.broker.stop()
    return found


def many_partitions(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Start each broker with 2,000 partitions of one record, until ListOffsets finds the record in each of them."""
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            topic = rival.topic("many", partitions=PARTITIONS)
            _one_record_each(rival, topic)
            rival.broker.stop()
            for _ in range(rounds):
                began = time.perf_counter()
                rival.timed_start()
                until(partial(_all_answer, rival, topic), each_s=0.01)
                found.setdefault(rival.name, []).append({"partitions": time.perf_counter() - began})
                rival.broker.stop()
    return found


def _one_record_each(rival: Rival, topic: str) -> None:
    parts = [{"Index": index, "Records": batch_of_size(200)} for index in range(PARTITIONS)]
    message = {"Acks": -1, "TimeoutMs": 60_000, "TopicData": [{"Name": topic, "PartitionData": parts}]}
    with connected(rival.servers) as connection:
        answer = connection.call("Produce", PRODUCE_VERSION, message)
    codes = {part["ErrorCode"] for part in answer["Responses"][0]["PartitionResponses"]}
    assert codes == {0}, codes


def _all_answer(rival: Rival, topic: str) -> bool:
    asked = [{"PartitionIndex": index, "Timestamp": -1} for index in range(PARTITIONS)]
    with connected(rival.servers) as connection:
        answer = connection.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]})
    parts: Sequence[dict[str, int]] = answer["Topics"][0]["Partitions"]
    return all(part["ErrorCode"] == 0 and part["Offset"] == 1 for part in parts)
