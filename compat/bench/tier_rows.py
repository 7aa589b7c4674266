"""The rows about tiered storage on a directory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from compat.bench.frames import PRODUCE_VERSION
from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import Figures, Row, at_least_times, at_most, at_most_times
from compat.bench.tier_worker import LATEST_TIERED, LIST_VERSION
from compat.oracle.batches import Batch, Item
from compat.oracle.raw import connected
from compat.waiting import until

MEGABYTES = 1_000
SEGMENT_BYTES = 16 << 20
SEEKS = 40
REST_COUNT = 10_000
HOUR_MS = 3_600_000
SEGMENTS, SEGMENT_PARTITIONS = 10_000, 10
LATEST, EARLIEST_LOCAL = -1, -4
# Tasks run often, so that a run does not consist of waiting for them; other settings have their defaults.
HURRIED = {
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "1000",
}
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}

TIER_ROWS = [
    Row(
        "tier-cold",
        "cold read of one partition, directory tier, 16 MiB segments, 1 MiB per Fetch",
        "MB/s",
        ">= 1.2 x",
        at_least_times(1.2),
    ),
    Row("tier-first", "the same cold read: first bytes after a seek, p50", "ms", "<= 1 x", at_most_times(1)),
    Row("tier-cpu", "the same cold read: CPU time of the broker", "s/GB", "<= 1 x", at_most_times(1)),
    Row(
        "tier-copy-memory",
        "copying 1 GB to the directory tier: resident memory above idle",
        "MiB",
        "<= 200",
        at_most(200),
    ),
    Row("tier-read-memory", "reading that 1 GB: resident memory above idle", "MiB", "<= 200", at_most(200)),
    Row(
        "tier-rest", "Produce of one 100 B record, before 1 GB moves to the tier: p99", "us", "<= 1 x", at_most_times(1)
    ),
    Row(
        "tier-move",
        "Produce of one 100 B record, while 1 GB moves to the directory tier: p99",
        "us",
        "<= 1.3 x before",
        lambda ours, _, figures: ours <= 1.3 * figures.get("tier-rest", ours),
    ),
    Row("tier-start", "start with 10,000 segments in the tier until all are readable", "s", "<= 2", at_most(2)),
]


def tier(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Move 1 GB to the tier while records are produced, then read it back, `rounds` times."""
    found: dict[str, list[Figures]] = {}
    idle: dict[str, float] = {}
    with rivals(directory, which=which, tier=HURRIED) as started:
        for rival in started:
            rival.timed_start()
            rival.measure("latency", rival.topic("warm"), count=20_000)
            time.sleep(2)
            idle[rival.name] = rival.resident_mib()
        for number in range(rounds):
            for rival in started if number % 2 == 0 else reversed(started):
                found.setdefault(rival.name, []).append(_moved_and_read(rival, idle[rival.name], seed=number))
    return found


def _moved_and_read(rival: Rival, idle_mib: float, *, seed: int) -> Figures:
    moving = rival.topic("moving", configs={**TIERED, "remote.storage.enable": "false"})
    rival.measure("fill", moving, partitions=1, megabytes=MEGABYTES)
    beside = rival.topic("beside")
    rest = rival.measure("latency", beside, count=REST_COUNT)
    # All segments but the active one are moved; that one may be as large as a full segment.
    end = offset(rival, moving, LATEST) - SEGMENT_BYTES // 1000
    with highest_resident(rival) as copying:
        rival.alter(moving, {"remote.storage.enable": "true"})
        moved = rival.measure("latency_while_copied", beside, moving=moving, end=end)
        until(lambda: offset(rival, moving, EARLIEST_LOCAL) > end)
    tier_end = offset(rival, moving, EARLIEST_LOCAL)
    with highest_resident(rival) as reading:
        first = rival.measure("first_bytes", moving, end=tier_end, count=SEEKS, seed=seed)
        before = rival.cpu_seconds()
        read = rival.measure("cold_read", moving, end=tier_end)
        spent = rival.cpu_seconds() - before
    rival.delete(moving, beside)
    return {
        "tier-cold": read["mb_s"],
        "tier-first": first["p50_ms"],
        "tier-cpu": spent / (read["bytes"] / 1e9),
        "tier-copy-memory": max(copying) - idle_mib,
        "tier-read-memory": max(reading) - idle_mib,
        "tier-rest": rest["p99_us"],
        "tier-move": moved["p99_us"],
    }


def remote_segments(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Start each broker with 10,000 segments in the tier, and wait until it reads the first record of each partition
    there.
    """
    found: dict[str, list[Figures]] = {}
    with rivals(directory, which=which, tier=HURRIED) as started:
        for rival in started:
            rival.timed_start()
            topic = _many_segments(rival)
            rival.broker.stop()
            for _ in range(rounds):
                began = time.perf_counter()
                rival.timed_start()
                until(partial(_is_readable, rival, topic))
                found.setdefault(rival.name, []).append({"tier-start": time.perf_counter() - began})
                rival.broker.stop()
    return found


def _many_segments(rival: Rival) -> str:
    """A topic whose records are hours apart, each in its own segment; returns when all are in the tier and deleted
    locally.
    """
    settings = {**TIERED, "segment.ms": str(HOUR_MS), "retention.ms": "-1"}
    topic = rival.topic("segments", partitions=SEGMENT_PARTITIONS, configs=settings)
    each = SEGMENTS // SEGMENT_PARTITIONS
    start_ms = int(time.time() * 1000) - 3 * each * HOUR_MS
    with connected(rival.servers) as connection:
        for number in range(each + 1):
            batch = Batch([Item(b"x" * 100)], base_timestamp=start_ms + 2 * number * HOUR_MS).encode()
            parts = [{"Index": index, "Records": batch} for index in range(SEGMENT_PARTITIONS)]
            message = {"Acks": -1, "TimeoutMs": 60_000, "TopicData": [{"Name": topic, "PartitionData": parts}]}
            answer = connection.call("Produce", PRODUCE_VERSION, message)
            assert {part["ErrorCode"] for part in answer["Responses"][0]["PartitionResponses"]} == {0}, answer
    for partition in range(SEGMENT_PARTITIONS):
        until(lambda partition=partition: offset(rival, topic, EARLIEST_LOCAL, partition=partition) >= each)
    logs = rival.broker.log_directory
    assert logs is not None
    until(lambda: not any(logs.glob(f"{topic}-*/*.deleted")))
    return topic


def _is_readable(rival: Rival, topic: str) -> bool:
    """Whether each partition's tier is known to its end, and a Fetch returns its first record."""
    each = SEGMENTS // SEGMENT_PARTITIONS
    with connected(rival.servers) as connection:
        asked = [{"PartitionIndex": index, "Timestamp": LATEST_TIERED} for index in range(SEGMENT_PARTITIONS)]
        listing = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}
        known = connection.call("ListOffsets", LIST_VERSION, listing)["Topics"][0]["Partitions"]
        if any(part["Offset"] != each - 1 for part in known):
            return False
        wanted = [{"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20} for index in range(len(asked))]
        topics = [{"Topic": topic, "Partitions": wanted}]
        request = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "SessionEpoch": -1, "Topics": topics}
        parts = connection.call("Fetch", 11, request)["Responses"][0]["Partitions"]
        return all(part["ErrorCode"] == 0 and part["Records"] for part in parts)


def offset(rival: Rival, topic: str, timestamp: int, *, partition: int = 0) -> int:
    """The answer of ListOffsets for one partition; -1 also for an error."""
    asked = [{"PartitionIndex": partition, "Timestamp": timestamp}]
    with connected(rival.servers) as connection:
        request = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}
        return int(connection.call("ListOffsets", LIST_VERSION, request)["Topics"][0]["Partitions"][0]["Offset"])


@contextlib.contextmanager
def highest_resident(rival: Rival) -> Iterator[list[float]]:
    """Samples the resident memory, also of a process that replaces a killed one; yields the samples in MiB."""
    seen, done = [rival.resident_mib()], threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            with contextlib.suppress(OSError, IndexError):  # between two processes
                seen.append(rival.resident_mib())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        done.set()
        looking.join()
