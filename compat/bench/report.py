"""The table of a run, for a terminal and for docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.bench.rows import ROWS
from compat.bench.sizes import Figures

HEAD = ("what", "unit", "Apache Kafka 4.3.1", "kbroker", "ratio", "goal", "reached")


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    keys = {key for figures in rounds for key in figures}
    return {key: statistics.median(figures[key] for figures in rounds if key in figures) for key in keys}


def spelt(value: float | None) -> str:
    """A figure with about three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(theirs: Figures, ours: Figures) -> list[tuple[str, ...]]:
    """The rows as text; a missing figure is a dash."""
    lines = []
    for row in ROWS:
        their, our = theirs.get(row.key.removesuffix("-pure")), ours.get(row.key)
        ratio = f"{our / their:.2f}" if their and our else "-"
        reached = "-"
        if our is not None and (their is not None or row.goal[-1] != "x"):
            reached = "yes" if row.reached(our, their or 0.0, ours) else "NO"
        lines.append((row.title, row.unit, spelt(their), spelt(our), ratio, row.goal, reached))
    return lines


def measured(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines that have a figure."""
    return [line for line in lines if line[2:4] != ("-", "-")]


def plain(lines: Sequence[tuple[str, ...]]) -> str:
    """For a terminal."""
    widths = [max(len(line[column]) for line in (HEAD, *lines)) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (HEAD, *lines)
    )


def machine() -> str:
    """The processor and the interpreter, without any name of the machine."""
    model = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores ({model[0] if model else platform.machine()}), CPython {platform.python_version()}"


def rounds_of(page: str) -> int:
    """The number of rounds that a page states; a run of some rows keeps it."""
    return int(re.findall(r"in turn, (\d+) rounds", page)[0])


def markdown(
    lines: Sequence[tuple[str, ...]],
    spread: Mapping[str, Mapping[str, tuple[float, float]]],
    rounds: int,
    *,
    former: str = "",
) -> str:
    """The page for docs/. Rows without a new figure keep their line of the former page."""
    ranges = [
        (row.title, row.unit, *(_range(spread[side].get(row.key)) for side in ("kafka", "kbroker"))) for row in ROWS
    ]
    whole = {line[:2] for line in measured(lines)}
    rows = "\n".join(_line(line, whole, former) for line in lines)
    ranges_text = "\n".join(_line(line, whole, former) for line in ranges)
    return f"""<!-- Written by `python -m compat.bench`; do not edit. -->
# Benchmarks: kbroker and Apache Kafka 4.3.1

Both brokers ran on one machine: {machine()}.
They were measured in turn, {rounds} rounds, with the same bytes, by the same clients in separate processes. A figure is
the median of the rounds. The second table has the lowest and the highest round; some rows have only one. A run may
measure only some rows, and the others keep the figures of an earlier run, so only the two brokers in one row can be
compared. Outside of the clusters, Kafka had a heap of 1 GiB and the options of its own start script.

| {" | ".join(HEAD)} |
|{"---|" * len(HEAD)}
{rows}

What the rows mean:

- Produce is version 7 over one plaintext loopback connection, with frames that were encoded in advance. Batches of 16
  and 900 KiB hold records of 1,000 bytes unless the row says otherwise (a broker checks every record, so their number
  matters). A batch of 1 KiB holds one record. Nothing is compressed. The warm-up is 20,000 requests to each broker.
- kbroker runs with compiled modules, except in rows that were last measured before it had them. Rows that begin with
  "pure Python" are the same broker without them, in the same run as the row with them. In the rows with five requests
  in one call, a client sends five requests on a connection and receives their replies before it sends the next five, so
  the client is not the bottleneck. Each connection has a partition.
- Fetch is version 11 without a session, with one request in flight. Each request asks for up to 1 MiB of one of four
  partitions of 64 MB. With four connections, each has a thread of the client. "Threads that only call sendfile" are a
  server in Python without a broker, on the same files, for comparison. The CPU time of a broker is user and system time
  of its process and child processes. Its memory includes child processes too.
- End to end is the time of one record from `produce` of confluent-kafka's producer (`linger.ms=0`, `acks=all`) to
  `poll` of its consumer in the same process.
- ProducerPerformance is Kafka's tool with its defaults (idempotent, `acks=all`).
- A rebalance is that of a stable group, from the first JoinGroup to the last answer to SyncGroup, over plain
  connections. A member that commits has one commit of one partition in flight.
- Each of the 500 groups has committed ten partitions ten times. The rows with 10,000 partitions have one round.
- The rows from "three replicas" to "one controller and three brokers" are about clusters of one kind: a controller and
  three brokers, each a process on the loopback interface. Brokers and clients use the same plaintext listener. Kafka
  ran with `-Xmx512m` and its script's collector, so its resident memory depends on this limit. `min.insync.replicas`
  is 2; other settings are the defaults, in which the controller fences a killed broker when its session of 9 s ends.
  The time after `kill -9` is the median of ten deaths.
- The tier is a directory on the same disk. The data that is read from it is in the page cache, but not in the log.
  1 GB of batches of 16 KiB is produced to a topic that is then tiered. Before and during the move, another topic gets
  one record at a time. Each seek goes to an offset in another part of the log, before the read from the beginning to
  the end.
- The 10,000 segments hold one record each, in ten partitions. They count as readable when the tier's last offset of
  each partition is known and a Fetch returns the first record of each.
- Spark is PySpark 4.0.0 on `local[2]` with its default settings. "The first query" is the first of a session, which
  has to load and compile what it runs; its time goes from `load` to the result and includes the lookup of data
  sources. "Again" is the second query. "Ready-made rows" are one Arrow batch that each task returns repeatedly, from
  a data source that reads nothing and was looked up before; no Python data source takes less time.
- The data of the Spark rows is in four partitions unless the row says otherwise, in batches of 16 KiB of JSON text
  with timestamps over a day. Kafka has it in its log, kbroker in a directory as the tier. Bytes through the broker are
  those of the topic in the broker's metrics. Bytes read from the store are counted by a storage plug-in, indexes
  included. The 2,048,000 records of 100 B have a quarter of the bytes of the 819,000.
- The rate of a second query is its records divided by its time. The topic has one or four partitions, and its data is
  in the page cache. The CPU time is that of Spark's processes and the broker's during this query.
- Compaction is one pass over 128 MiB of closed segments, in which a quarter of the records is the last one of its key,
  in batches of 16 KiB (64 KiB before compression). The time is processor time of the broker and its child processes,
  with the start of kbroker's worker process. docs/design.md says what a pass spends its time on.
- Starts use a formatted directory, with one broker at a time on the machine. Memory is measured two seconds later.

The lowest and highest round:

| what | unit | Apache Kafka 4.3.1 | kbroker |
|---|---|---|---|
{ranges_text}
"""


def _range(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{spelt(found[0])} - {spelt(found[1])}"


def _line(line: tuple[str, ...], measured_now: set[tuple[str, ...]], former: str) -> str:
    """The new line if it was measured, otherwise the former page's line with the same title and unit."""
    if line[:2] not in measured_now:
        for old in former.splitlines():
            cells = tuple(cell.strip() for cell in old.strip("|").split("|"))
            if cells[:2] == line[:2] and len(cells) == len(line):
                return old
    return f"| {' | '.join(line)} |"
