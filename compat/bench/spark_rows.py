"""The rows about Spark: its stock connector on Apache Kafka, and `format("kbroker")` on the tier of kbroker.

The same bytes are produced to both. Kafka keeps them in its log. kbroker's topic is flushed, so that all of them are in
a directory tier; kbroker runs but serves none of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from compat.bench.counting_storage import counted
from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import Figures, Row, at_least_times, at_most, at_most_times
from compat.bench.spark_filling import DAY_MS, HOUR_MS, Day
from compat.bench.tier_rows import HURRIED, LATEST, LATEST_TIERED, offset
from compat.brokers import free_port
from compat.kafka import Unavailable
from compat.oracle.batches import ZSTD
from compat.spark.environment import ROOT, spark_python
from compat.waiting import until

PARTITIONS = 4
COUNTING = "compat.bench.counting_storage:CountingStorage"
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(64 << 20), "retention.ms": "-1"}
PLAIN = {"segment.bytes": str(64 << 20), "retention.ms": "-1"}
CHUNK_MIB = 8
READY = 2_047_500  # about as many ready-made rows as records in 2 GB; 25 batches in each task of spark_ready
LOADED = "with kbroker.spark.load"

SPARK_ROWS = [
    Row(
        "spark-1k",
        "Spark, local[2]: count and sum of value lengths, 819,000 records of 1 KiB; left: stock connector,"
        ' right: format("kbroker") on the tier',
        "s",
        "<= 0.5 x",
        at_most_times(0.5),
    ),
    Row("spark-1k-again", "the same query again in the same session", "s", "none", lambda *_: True),
    Row("spark-1k-load", f"the first query {LOADED}", "s", "none", lambda *_: True),
    Row("spark-1k-ready", "the same query on ready-made Python rows, without reading", "s", "none", lambda *_: True),
    Row("spark-1k-through", "the first query: bytes through the broker", "bytes", "0", at_most(0)),
    Row("spark-1k-stock", "the first query with the stock connector on both brokers", "s", "none", lambda *_: True),
    Row("spark-zstd", "the first query with zstd batches", "s", "< 1 x", lambda ours, theirs, _: ours < theirs),
    Row("spark-zstd-load", f"the first query on zstd batches {LOADED}", "s", "none", lambda *_: True),
    Row(
        "spark-small",
        "the first query on 2,048,000 records of 100 B",
        "s",
        "< 1 x",
        lambda ours, theirs, _: ours < theirs,
    ),
    Row("spark-small-load", f"the first query on records of 100 B {LOADED}", "s", "none", lambda *_: True),
    Row("spark-hour", "one hour of a day with 819,000 records, by timestamp", "s", "none", lambda *_: True),
    Row("spark-hour-read", "that hour: bytes read from the store", "x the hour's", "<= 1.2", at_most(1.2)),
    Row(
        "spark-memory",
        "reading 819,000 records: peak resident memory of a Python worker, above one that reads 16 records",
        "MiB",
        f"<= {8 * CHUNK_MIB} (chunks of {CHUNK_MIB})",
        at_most(8 * CHUNK_MIB),
    ),
    Row("spark-memory-all", "the same: total resident memory", "MiB", "none", lambda *_: True),
    Row(
        "spark-rate-1k",
        "Spark, the second query of a session: 2,000,000 records of 1 KiB (2 GB) in one partition",
        "records/s",
        ">= 2.5 x",
        at_least_times(2.5),
    ),
    Row("spark-rate-1k-cpu", "the same: CPU time of Spark and the broker", "s/GB", "none", lambda *_: True),
    Row("spark-rate-1k-ready", "the same on ready-made Python rows", "records/s", "none", lambda *_: True),
    Row("spark-rate-1k-4", "the same 2 GB in four partitions", "records/s", ">= 1.5 x", at_least_times(1.5)),
    Row(
        "spark-rate-1k-4-cpu",
        "the same four partitions: CPU time of Spark and the broker",
        "s/GB",
        "none",
        lambda *_: True,
    ),
    Row(
        "spark-rate-small",
        "the second query: 6,000,000 records of 100 B (0.7 GB) in one partition",
        "records/s",
        ">= 2 x",
        at_least_times(2),
    ),
    Row(
        "spark-rate-zstd",
        "the second query: 1,000,000 records of 1 KiB in one partition, zstd",
        "records/s",
        "> 1 x",
        lambda ours, theirs, _: ours > theirs,
    ),
]


@dataclass(frozen=True)
class Filled:
    """A topic on each broker with the same records."""

    day: Day
    topics: dict[str, str]
    bytes: int


class Bench:
    """Running brokers, and Spark."""

    def __init__(self, directory: Path, started: list[Rival], http: int) -> None:
        self.directory, self.started, self._http = directory, started, http
        self.python = spark_python()

    def fill(self, record_bytes: int, records: int, *, codec: int = 0, partitions: int = PARTITIONS) -> Filled:
        """A day of records that ended an hour ago, on each broker; on kbroker completely in the tier."""
        start_ms = int(time.time() * 1000) - DAY_MS - HOUR_MS
        day = Day(record_bytes, records // partitions, partitions, codec, start_ms)
        topics, written = {}, 0.0
        for rival in self.started:
            topics[rival.name] = topic = rival.topic("spark", partitions=partitions, configs=_configs(rival))
            written = rival.measure("fill_day", topic, day=asdict(day))["bytes"]
            if rival.name == "kbroker":
                _flush(rival, topic, partitions)
        return Filled(day, topics, int(written))

    def query(
        self, rival: Rival, filled: Filled, *, stock: bool = False, loads: bool = False, **more: object
    ) -> dict[str, float]:
        """Run one query in a new session and check its result unless it is bounded; returns its figures."""
        options = {"kafka.bootstrap.servers": rival.servers, "subscribe": filled.topics[rival.name]}
        is_stock = stock or rival.name != "kbroker"
        if not is_stock:
            options["rsm.config.dir"] = str(self.directory / "kbroker-tier")
        given = {key: value for key, value in more.items() if key not in {"small", "times"}}
        options |= {key: str(value) for key, value in given.items()}
        way = "kafka" if is_stock else "load" if loads else "kbroker"
        job: dict[str, object] = {"format": way, "options": options, "broker": rival.broker.pid}
        job |= {key: more[key] for key in ("small", "times") if key in more}
        figures = run_spark(self.python, job)
        if not given.keys() & {"startingTimestamp"}:
            wanted = (filled.day.count, filled.day.count * filled.day.record_bytes)
            assert (figures["records"], figures["bytes"]) == wanted, figures
        return figures

    def ready_made(self, record_bytes: int, records: int) -> dict[str, float]:
        """The figures of the same query on ready-made rows."""
        options = {"records": str(records), "record_bytes": str(record_bytes)}
        figures = run_spark(self.python, {"format": "ready-made", "options": options})
        assert figures["records"] == records
        return figures

    def through(self, rival: Rival, filled: Filled) -> float:
        """How many bytes of the topic clients have fetched, by the broker's metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        name = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{filled.topics[rival.name]}"}}'
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def run_spark(python: str, job: dict[str, object]) -> dict[str, float]:
    """Run `spark_worker`. Errors: RuntimeError with its output."""
    done = subprocess.run(
        [python, "-m", "compat.bench.spark_worker", json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            found: dict[str, float] = json.loads(line.removeprefix("FIGURES "))
            return found
    raise RuntimeError(f"Spark has failed:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")


def _configs(rival: Rival) -> dict[str, str]:
    return TIERED if rival.name == "kbroker" else PLAIN


def _flush(rival: Rival, topic: str, partitions: int) -> None:
    """Move the whole topic to the tier."""
    command = [sys.executable, "-m", "kbroker", "tier", "flush", "-b", rival.servers, "-t", topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for partition in range(partitions):
        end = offset(rival, topic, LATEST, partition=partition)
        until(lambda partition=partition, end=end: offset(rival, topic, LATEST_TIERED, partition=partition) == end - 1)


Rounds = dict[str, list[Figures]]
Measure = Callable[["Bench", int, Rounds], None]


def _whole(bench: Bench, rounds: int, found: Rounds) -> None:
    """The whole topic: time, bytes through the broker, and the stock connector on kbroker."""
    filled = bench.fill(1024, 819_000)
    for number in range(rounds):
        for rival in bench.started if number % 2 == 0 else reversed(bench.started):
            before = bench.through(rival, filled) if rival.name == "kbroker" else 0
            query = bench.query(rival, filled)
            figures = {"spark-1k": query["seconds"], "spark-1k-again": query["seconds_again"]}
            if rival.name == "kbroker":
                figures["spark-1k-through"] = bench.through(rival, filled) - before
                figures["spark-1k-load"] = bench.query(rival, filled, loads=True, times=1)["seconds"]
                figures["spark-1k-ready"] = bench.ready_made(1024, filled.day.count)["seconds"]
                figures["spark-1k-stock"] = bench.query(rival, filled, stock=True)["seconds"]
            else:
                figures |= dict.fromkeys(("spark-1k-load", "spark-1k-stock"), query["seconds"])
            found.setdefault(rival.name, []).append(figures)


def _one(key: str, record_bytes: int, records: int, codec: int) -> Measure:
    def measure(bench: Bench, rounds: int, found: Rounds) -> None:
        filled = bench.fill(record_bytes, records, codec=codec)
        for number in range(rounds):
            for rival in bench.started if number % 2 == 0 else reversed(bench.started):
                seconds = loaded = bench.query(rival, filled)["seconds"]
                if rival.name == "kbroker":
                    loaded = bench.query(rival, filled, loads=True, times=1)["seconds"]
                found.setdefault(rival.name, []).append({key: seconds, f"{key}-load": loaded})

    return measure


def _rate(key: str, record_bytes: int, records: int, *, codec: int = 0, partitions: int = 1) -> Measure:
    """The second query of a session: how many records it reads per second of its own time."""

    def measure(bench: Bench, rounds: int, found: Rounds) -> None:
        filled = bench.fill(record_bytes, records, codec=codec, partitions=partitions)
        for number in range(rounds):
            for rival in bench.started if number % 2 == 0 else reversed(bench.started):
                query = bench.query(rival, filled)
                figures = {
                    key: filled.day.count / query["seconds_again"],
                    f"{key}-cpu": query["cpu_again"] / filled.bytes * 1e9,
                }
                if rival.name == "kbroker" and key == "spark-rate-1k":
                    figures[f"{key}-ready"] = READY / bench.ready_made(1024, READY)["seconds_again"]
                found.setdefault(rival.name, []).append(figures)

    return measure


def _hour(bench: Bench, rounds: int, found: Rounds) -> None:
    """The thirteenth hour."""
    filled = bench.fill(1024, 819_000)
    begin = filled.day.start_ms + 12 * HOUR_MS
    between = {"startingTimestamp": begin, "endingTimestamp": begin + HOUR_MS}
    wanted = filled.day.bytes_between(begin, begin + HOUR_MS)
    for number in range(rounds):
        for rival in bench.started if number % 2 == 0 else reversed(bench.started):
            figures = bench.query(rival, filled, **between)
            reported = {"spark-hour": figures["seconds"]}
            if rival.name == "kbroker":
                counts = bench.directory / f"counts-{number}"
                plugin = {"remote.log.storage.manager.class.name": COUNTING, "rsm.config.counts": counts}
                again = bench.query(rival, filled, **between, **plugin, times=1)  # its reads are counted
                assert again["records"] == figures["records"] > 0
                reported["spark-hour-read"] = sum(counted(counts).values()) / wanted
            found.setdefault(rival.name, []).append(reported)


def _memory(bench: Bench, rounds: int, found: Rounds) -> None:
    """The workers' memory for all records, minus their memory for sixteen records."""
    filled = bench.fill(1024, 819_000)
    for rival in bench.started:
        if rival.name == "kbroker":
            ends = {filled.topics[rival.name]: {str(partition): 16 for partition in range(PARTITIONS)}}
            for _ in range(rounds):
                figures = bench.query(rival, filled, small={"endingOffsets": json.dumps(ends)})
                over = figures["peak_mib"] - figures["small_mib"]
                found.setdefault(rival.name, []).append({"spark-memory": over, "spark-memory-all": figures["peak_mib"]})


def spark(measure: Measure) -> Callable[..., dict[str, list[Figures]]]:
    """A measurement outside the rounds of the others."""

    def run(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
        found: Rounds = {}
        try:
            with _bench(directory, which) as bench:
                measure(bench, rounds, found)
        except Unavailable as error:
            print(f"  no rows about Spark: {error}", file=sys.stderr)
        return found

    return run


@contextmanager
def _bench(directory: Path, which: set[str]) -> Iterator[Bench]:
    spark_python()
    http = free_port()
    pages = {"kbroker.http.listener": f"127.0.0.1:{http}"}
    with rivals(directory, which=which, tier=HURRIED, kbroker=pages) as started:
        for rival in started:
            rival.timed_start()
        yield Bench(directory, started, http)


SPARK_MEASURES = {
    "spark": spark(_whole),
    "spark-zstd": spark(_one("spark-zstd", 1024, 819_000, ZSTD)),
    "spark-small": spark(_one("spark-small", 100, 2_048_000, 0)),
    "spark-hour": spark(_hour),
    "spark-memory": spark(_memory),
    "spark-rate": spark(_rate("spark-rate-1k", 1024, 2_000_000)),
    "spark-rate-4": spark(_rate("spark-rate-1k-4", 1024, 2_000_000, partitions=4)),
    "spark-rate-small": spark(_rate("spark-rate-small", 100, 6_000_000)),
    "spark-rate-zstd": spark(_rate("spark-rate-zstd", 1024, 1_000_000, codec=ZSTD)),
}
