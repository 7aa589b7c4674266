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
    """A figure with three digits or so."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(theirs: Figures, ours: Figures) -> list[tuple[str, ...]]:
    """The rows as text; a figure that was not measured is a dash."""
    lines = []
    for row in ROWS:
        their, our = theirs.get(row.key), ours.get(row.key)
        ratio = f"{our / their:.2f}" if their and our else "-"
        reached = "-"
        if our is not None and (their is not None or row.goal[-1] != "x"):
            reached = "yes" if row.reached(our, their or 0.0, ours) else "NO"
        lines.append((row.title, row.unit, spelt(their), spelt(our), ratio, row.goal, reached))
    return lines


def measured(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those with a figure."""
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
    """How many rounds a page tells of: a run of some rows does not change what the others had."""
    return int(re.findall(r"in turn, (\d+) rounds", page)[0])


def markdown(
    lines: Sequence[tuple[str, ...]],
    spread: Mapping[str, Mapping[str, tuple[float, float]]],
    rounds: int,
    *,
    former: str = "",
) -> str:
    """The page for docs/. Rows without a figure stand as they did on the former page."""
    ranges = [
        (row.title, row.unit, *(_range(spread[side].get(row.key)) for side in ("kafka", "kbroker"))) for row in ROWS
    ]
    whole = {line[:2] for line in measured(lines)}
    rows = "\n".join(_line(line, whole, former) for line in lines)
    ranges_text = "\n".join(_line(line, whole, former) for line in ranges)
    return f"""<!-- Written by `python -m compat.bench`; do not edit. -->
# Benchmarks: kbroker beside Apache Kafka 4.3.1

Both brokers ran on one machine in one run: {machine()}; Kafka on a heap of 1 GiB with the options of its own start
script. Each was warmed with 20,000 requests; then they were measured in turn, {rounds} rounds, with the same bytes by
the same clients in processes of their own. A figure is the median of the rounds. The rows about tiered storage are of a
run of their own, of two rounds or more, again with both.

| {" | ".join(HEAD)} |
|{"---|" * len(HEAD)}
{rows}

What the rows mean:

- Produce is version 7 over one plaintext loopback connection, from frames that were encoded beforehand. A batch of
  16 or 900 KiB holds records of 1,000 bytes where nothing else is said (a broker walks every record, so their number
  counts), one of 1 KiB holds one record. Nothing is compressed.
- Fetch is version 11 without a session, one request in flight, each for up to 1 MiB of one of four partitions that hold
  64 MB each. The broker's CPU is user and system time of its process and of those that it
  has started, and so is its memory.
- End to end is one record from `produce` of confluent-kafka's producer (`linger.ms=0`, `acks=all`) to `poll` of its
  consumer in the same process.
- ProducerPerformance is Kafka's own tool with its defaults (idempotent, `acks=all`).
- A rebalance is one of a stable group, from the first JoinGroup to the last answer to SyncGroup, by bare connections. A
  member that commits has one commit of one partition in flight.
- The 500 groups have committed ten partitions ten times. Of 10,000 partitions there is one round.
- The tier is a directory of the same disk, and what is read from it is in the page cache but not in the log. 1 GB of
  batches of 16 KiB is produced to a topic that is then tiered; while it moves, and before, one record at a time is
  produced to another topic. A seek is to an offset in another part of the log each time, before the read from beginning
  to end.
- The 10,000 segments are of one record, in ten partitions. They are readable when the tier's last offset of each
  partition is known and a Fetch brings the first record of each.
- Spark is PySpark 4.0.0 on `local[2]`, with its settings as installed. Each query is the first of a session, which has
  to load and compile what it runs, and its time goes from `load` to the result, looking for data sources included;
  "once more" is the second. Rows that are ready-made are one Arrow batch that each task gives again and again, by a
  data source that reads nothing and was looked up before: less than that no data source in Python takes.
  Four partitions hold batches of 16 KiB of JSON text
  whose times go through a day; Kafka has them in its log, kbroker in a directory as the tier. Bytes through the broker
  are those of the topic by the broker's metrics, bytes read from the store those that a storage manager plug-in
  counted, indexes included. The 2,048,000 records of 100 B are a quarter of the bytes of the 819,000. These rows are of
  runs of their own.
- Starts are on a formatted directory, each broker alone on the machine; memory is looked at two seconds later.

The lowest and the highest round:

| what | unit | Apache Kafka 4.3.1 | kbroker |
|---|---|---|---|
{ranges_text}
"""


def _range(found: tuple[float, float] | None) -> str:
    return "-" if found is None else f"{spelt(found[0])} - {spelt(found[1])}"


def _line(line: tuple[str, ...], measured_now: set[tuple[str, ...]], former: str) -> str:
    """A line of a table: as it is, or that of the former page with as many cells."""
    if line[:2] not in measured_now:
        for old in former.splitlines():
            cells = tuple(cell.strip() for cell in old.strip("|").split("|"))
            if cells[:2] == line[:2] and len(cells) == len(line):
                return old
    return f"| {' | '.join(line)} |"
