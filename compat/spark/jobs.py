"""What the tests of the jobs share: topics in a tier, their records, and the options that lead to both."""

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
    """The broker and the store of a site, as `format("kbroker")` names them."""
    return {
        "kafka.bootstrap.servers": site.address,
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(site.tier_directory),
    }


def flags(site: Site) -> list[str]:
    """The same on the command line."""
    return [word for name, value in options(site).items() for word in ("--option", f"{name}={value}")]


def fill(site: Site, topic: str, records: Sequence[Sample], *, partition: int = 0) -> None:
    """Write records in batches that segments of 120 kB take some of."""
    kafka_python.produce(site.address, topic, partition, list(records), "none", idempotent=True)


def json_samples(count: int, *, start: int = 0, start_ms: int = 20 * DAY_MS, step_ms: int = 60_000) -> list[Sample]:
    """Objects with an integer, a text and a time, a minute apart."""
    return [
        Sample(
            b"k%d" % number,
            json.dumps({"number": number, "name": f"n{number}" * 20, "at": "2026-01-31T12:00:00Z"}).encode(),
            start_ms + step_ms * number,
        )
        for number in range(start, start + count)
    ]


def exported(output: Path, *, below: str = "") -> list[dict[str, object]]:
    """Every row of an export, read by Arrow alone, by partition and offset."""
    rows: list[dict[str, object]] = []
    for path in sorted((output / below).glob("date=*/partition=*/*.parquet")):
        partition = int(path.parent.name.removeprefix("partition="))
        date = path.parent.parent.name.removeprefix("date=")
        table: pa.Table = pq.read_table(path, partitioning=None)
        rows += [{**row, "partition": partition, "date": date} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def as_sample(row: dict[str, object]) -> Sample:
    """The record that an exported row is."""
    timestamp, headers = row["timestamp"], row["headers"] or ()
    return Sample(
        row["key"], row["value"], round(timestamp.timestamp() * 1000),
        tuple((each["key"], each["value"]) for each in headers),
    )  # fmt: skip


def numbered(rows: Iterable[dict[str, object]]) -> list[tuple[object, object]]:
    """Partition and offset of each row."""
    return [(row["partition"], row["offset"]) for row in rows]


def topics(site: Site) -> set[str]:
    """The names of the topics that a broker tells of."""
    answer = site.call("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False})
    return {topic["Name"] for topic in answer["Topics"]}
