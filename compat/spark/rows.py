"""Rows of Spark and records of a topic, as each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from compat.clients import kafka_python
from compat.clients.samples import CODECS, Sample, samples


def written(servers: str, topic: str, *, partitions: int, count: int, seed: int = 0) -> dict[int, list[Sample]]:
    """Write `count` odd and ordinary records to each partition, each with another codec; what was written."""
    found = {}
    for partition in range(partitions):
        found[partition] = samples(count, seed=seed + partition, null_headers=False)
        codec = CODECS[partition % len(CODECS)]
        kafka_python.produce(servers, topic, partition, found[partition], codec, idempotent=True)
    return found


def kafka_rows(spark: SparkSession, servers: str, topic: str, **options: object) -> DataFrame:
    """A batch read of a topic by the stock connector, with headers."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return reader.options(**{"includeHeaders": "true", **{key: str(value) for key, value in options.items()}}).load()


def by_partition(frame: DataFrame) -> dict[int, dict[int, Sample]]:
    """All rows: partition -> offset -> record. Errors: AssertionError where an offset is there twice."""
    columns = ["key", "value", "partition", "offset", "unix_millis(timestamp) AS time", "headers"]
    found: dict[int, dict[int, Sample]] = {}
    for row in frame.selectExpr(*columns).collect():
        records = found.setdefault(row.partition, {})
        assert row.offset not in records, f"offset {row.offset} of partition {row.partition} is there twice"
        records[row.offset] = Sample(_bytes(row.key), _bytes(row.value), row.time, _headers(row.headers))
    return found


def numbered(
    records: dict[int, list[Sample]], *, start: int = 0, end: int | None = None
) -> dict[int, dict[int, Sample]]:
    """What was written from an offset up to another, in the shape of `by_partition`."""
    return {partition: dict(list(enumerate(each))[start:end]) for partition, each in records.items()}


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(headers: Iterable[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header.key, _bytes(header.value)) for header in headers or ())
