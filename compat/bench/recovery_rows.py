"""How long recovery takes after `kill -9`: both brokers read the same bytes from the page cache.

Kafka and kbroker have the same file format, so the logs are written directly: each partition of a topic gets a copy of
one segment of small batches. The figure is the time from the start of the process until ListOffsets finds the end of
every partition. Neither broker has a recovery point, so each reads everything.
"""

from __future__ import annotations

import shutil
import struct
import time
from functools import partial
from pathlib import Path

from compat.bench.frames import batch_of_now
from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import Figures, Row, at_most_times
from compat.oracle.batches import Item
from compat.oracle.raw import connected
from compat.waiting import until

PARTITIONS = 8
LOG_BYTES = 256 << 20
BATCH_BYTES = 200
START_TIMEOUT_S = 300.0
_TILE_BATCHES = 10_000
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"

RECOVERY_ROWS = [
    Row(
        "recovery",
        "recovery after kill -9: 8 partitions of 256 MiB in batches of 200 B, until all answer",
        "s",
        "<= 0.4 x",
        at_most_times(0.4),
    )
]


def recovery(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Give each broker the logs as after an unclean shutdown and start it; then kill it, before it writes a recovery
    point.
    """
    found: dict[str, list[Figures]] = {}
    directory.mkdir(parents=True, exist_ok=True)
    segment = directory / "segment"
    count = write_segment(segment)
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            topic = rival.topic("recovery", partitions=PARTITIONS, configs={"retention.ms": "-1"})
            rival.broker.stop()  # not killed: Kafka may not have written the id of each partition yet
            assert rival.broker.log_directory is not None
            for _ in range(rounds):
                for name in (_CLEAN_SHUTDOWN, _RECOVERY_POINTS):
                    (rival.broker.log_directory / name).unlink(missing_ok=True)
                for index in range(PARTITIONS):
                    shutil.copy(segment, rival.broker.log_directory / f"{topic}-{index}" / f"{0:020d}.log")
                began = time.perf_counter()
                rival.broker.start(timeout_s=START_TIMEOUT_S)
                until(partial(_all_are_recovered, rival, topic, count), each_s=0.02)
                found.setdefault(rival.name, []).append({"recovery": time.perf_counter() - began})
                rival.broker.kill()
    return found


def write_segment(path: Path) -> int:
    """Write LOG_BYTES of batches of one record each with the current time; returns the number of records."""
    size = len(batch_of_now([Item(b"v" * 100)]))
    batch = batch_of_now([Item(b"v" * (100 + BATCH_BYTES - size))])
    count = LOG_BYTES // len(batch)
    tile = bytearray(batch * _TILE_BATCHES)
    with path.open("wb") as file:
        for first in range(0, count, _TILE_BATCHES):
            filled = min(_TILE_BATCHES, count - first)
            for number in range(filled):
                struct.pack_into(">q", tile, number * len(batch), first + number)  # not covered by the CRC
            file.write(memoryview(tile)[: filled * len(batch)])
    return count


def _all_are_recovered(rival: Rival, topic: str, count: int) -> bool:
    asked = [{"PartitionIndex": index, "Timestamp": -1} for index in range(PARTITIONS)]
    try:
        with connected(rival.servers) as connection:
            message = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}
            answer = connection.call("ListOffsets", 1, message)
    except OSError:
        return False
    return all(part["ErrorCode"] == 0 and part["Offset"] == count for part in answer["Topics"][0]["Partitions"])
