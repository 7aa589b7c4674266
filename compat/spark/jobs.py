"""Shared by the tests of the jobs: tiered topics, their records, and the options that name broker and store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compat.clients import kafka_python
from compat.clients.samples import Sample
from compat.tiered.site import Site

DAY_MS = 86_400_000
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "120000",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
}

Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def options(site: Site) -> dict[str, str]:
    """The options of `format("kbroker")` for the broker and store of a site."""
    return {
        "kafka.bootstrap.servers": site.address,
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(site.tier_directory),
    }


def flags(site: Site) -> list[str]:
    """The same options as flags of the command line."""
    return [word for name, value in options(site).items() for word in ("--option", f"{name}={value}")]


def fill(site: Site, topic: str, records: Sequence[Sample], *, partition: int = 0) -> None:
    """Write records in batches, several of which fit into a segment of 120 kB."""
    kafka_python.produce(site.address, topic, partition, list(records), "none", idempotent=True)


def json_samples(count: int, *, start: int = 0, start_ms: int = 20 * DAY_MS, step_ms: int = 60_000) -> list[Sample]:
    """JSON objects with an integer, a text and a time, one minute apart."""
    return [
        Sample(
            b"k%d" % number,
            json.dumps({"number": number, "name": f"n{number}" * 20, "at": "2026-01-31T12:00:00Z"}).encode(),
            start_ms + step_ms * number,
        )
        for number in range(start, start + count)
    ]


def exported(output: Path, *, below: str = "") -> list[dict[str, object]]:
    """Every row of an export by partition and offset, read with Arrow and without Spark."""
    rows: list[dict[str, object]] = []
    for path in sorted((output / below).glob("date=*/partition=*/*.parquet")):
        partition = int(path.parent.name.removeprefix("partition="))
        date = path.parent.parent.name.removeprefix("date=")
        table: pa.Table = pq.read_table(path, partitioning=None)
        rows += [{**row, "partition": partition, "date": date} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def as_sample(row: dict[str, object]) -> Sample:
    """The record of an exported row."""
    timestamp, headers = row["timestamp"], row["headers"] or ()
    return Sample(
        row["key"], row["value"], round(timestamp.timestamp() * 1000),
        tuple((each["key"], each["value"]) for each in headers),
    )  # fmt: skip


def numbered(rows: Iterable[dict[str, object]]) -> list[tuple[object, object]]:
    """Partition and offset of each row."""
    return [(row["partition"], row["offset"]) for row in rows]


def topics(site: Site) -> set[str]:
    """The names of a broker's topics."""
    answer = site.call("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False})
    return {topic["Name"] for topic in answer["Topics"]}
