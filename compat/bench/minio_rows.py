"""The rows about tiered storage on MinIO. kbroker is compared not with a broker but with the `minio` package, which
puts the same files and reads the same objects by plain ranges.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.bench.minio_worker import ACCESS_KEY, SECRET_KEY
from compat.bench.rivals import Rival
from compat.bench.sizes import Figures, Row, at_least_times
from compat.bench.tier_rows import EARLIEST_LOCAL, HURRIED, LATEST, LATEST_TIERED, offset
from compat.brokers import KbrokerProcess
from compat.kafka import Unavailable
from compat.minio import BUCKET, MinioServer, binary
from compat.waiting import until

MEGABYTES = 1_000
SEGMENT_BYTES = 64 << 20
RECORD_BYTES = 1_000
TIERED = {"segment.bytes": str(SEGMENT_BYTES), "remote.storage.enable": "false"}

MINIO_ROWS = [
    Row(
        "minio-copy",
        "copy of 64 MiB segments to MinIO (left: plain put_object)",
        "MB/s",
        ">= 0.8 x",
        at_least_times(0.8),
    ),
    Row(
        "minio-one",
        "cold read of one partition from MinIO, 4 MiB per Fetch (left: plain GETs of 4 MiB ranges)",
        "MB/s",
        ">= 0.5 x",
        at_least_times(0.5),
    ),
    Row("minio-four", "the same for four partitions at once", "MB/s", ">= 0.6 x", at_least_times(0.6)),
    Row(
        "minio-one-cpu",
        "cold read of one partition from MinIO: CPU time of the broker",
        "s/GB",
        "none",
        lambda *_: True,
    ),
    Row(
        "minio-four-cpu",
        "cold read of four partitions from MinIO: CPU time of the broker",
        "s/GB",
        "none",
        lambda *_: True,
    ),
    Row("minio-copy-cpu", "copy to MinIO: CPU time of the broker", "s/GB", "none", lambda *_: True),
]


def minio(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Move 1 GB to MinIO and read it back, in one partition and in four, `rounds` times."""
    found: dict[str, list[Figures]] = {}
    if "kbroker" not in which:
        return found
    try:
        binary()
    except Unavailable as error:
        print(f"  no rows about MinIO: {error}", file=sys.stderr)
        return found
    server = MinioServer(directory / "minio")
    (server.directory / "data" / BUCKET).mkdir(parents=True)
    server.start()
    try:
        with _broker(directory, server) as rival:
            rival.measure("latency", rival.topic("warm"), count=20_000)
            for _ in range(rounds):
                _round(rival, server, found)
    finally:
        server.kill()
    return found


@contextmanager
def _broker(directory: Path, server: MinioServer) -> Iterator[Rival]:
    """A broker with its tier on the server; it and the workers get the keys from the environment."""
    settings = {
        **HURRIED,
        "remote.log.storage.manager.class.name": "minio",
        "rsm.config.endpoint": server.endpoint,
        "rsm.config.bucket": BUCKET,
    }
    rival = Rival(KbrokerProcess(directory / "kbroker", overrides=[f"{key}={text}" for key, text in settings.items()]))
    keys = {ACCESS_KEY: server.access_key, SECRET_KEY: server.secret_key}
    os.environ.update(keys)
    try:
        rival.timed_start()
        yield rival
    finally:
        for key in keys:
            del os.environ[key]
        rival.broker.kill()


def _round(rival: Rival, server: MinioServer, found: dict[str, list[Figures]]) -> None:
    ours: Figures = {}
    plain: Figures = {}
    store: dict[str, str] = {"endpoint": server.endpoint, "bucket": BUCKET}
    for stem, partitions in (("one", 1), ("four", 4)):
        topic = rival.topic(f"minio-{stem}", partitions=partitions, configs=TIERED)
        rival.measure("fill", topic, partitions=partitions, megabytes=MEGABYTES // partitions)
        # Each active segment stays local; it may be as large as a full segment.
        ends = [
            offset(rival, topic, LATEST, partition=each) - SEGMENT_BYTES // RECORD_BYTES for each in range(partitions)
        ]
        if stem == "one":
            plain["minio-copy"] = rival.measure("put_files", topic, **store, paths=_closed(rival, topic))["mb_s"]
        began, before = time.perf_counter(), rival.cpu_seconds()
        rival.alter(topic, {"remote.storage.enable": "true"})
        until(lambda topic=topic, ends=ends: _reached(rival, topic, LATEST_TIERED, ends))
        took, spent = time.perf_counter() - began, rival.cpu_seconds() - before
        if stem == "one":
            copied = (offset(rival, topic, LATEST_TIERED) + 1) * RECORD_BYTES
            ours["minio-copy"] = copied / took / 1e6
            ours["minio-copy-cpu"] = spent / (copied / 1e9)
        rival.alter(topic, {"local.retention.bytes": "1"})
        until(lambda topic=topic, ends=ends: _reached(rival, topic, EARLIEST_LOCAL, ends))
        ends = [offset(rival, topic, EARLIEST_LOCAL, partition=each) for each in range(partitions)]
        before = rival.cpu_seconds()
        read = rival.measure("read_partitions", topic, ends=ends)
        ours[f"minio-{stem}"] = read["mb_s"]
        ours[f"minio-{stem}-cpu"] = (rival.cpu_seconds() - before) / (read["bytes"] / 1e9)
        prefixes = _prefixes(server, topic, partitions)
        plain[f"minio-{stem}"] = rival.measure("read_objects", topic, **store, prefixes=prefixes)["mb_s"]
        rival.delete(topic)
    found.setdefault("plain", []).append(plain)
    found.setdefault("kbroker", []).append(ours)


def _reached(rival: Rival, topic: str, timestamp: int, ends: list[int]) -> bool:
    return all(offset(rival, topic, timestamp, partition=each) >= end for each, end in enumerate(ends))


def _closed(rival: Rival, topic: str) -> list[str]:
    """The files of the closed segments of the only partition."""
    assert rival.broker.log_directory is not None
    return [str(path) for path in sorted((rival.broker.log_directory / f"{topic}-0").glob("*.log"))[:-1]]


def _prefixes(server: MinioServer, topic: str, partitions: int) -> list[str]:
    """The prefix of the object names of each partition."""
    bucket = server.directory / "data" / BUCKET
    (home,) = bucket.glob(f"{topic}-*")
    return [f"{home.name}/{each}/" for each in range(partitions)]
