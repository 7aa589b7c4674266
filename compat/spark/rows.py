"""Converts between Spark's rows and a topic's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from compat.clients import kafka_python
from compat.clients.samples import CODECS, Sample, samples
from compat.oracle.raw import connected

Records = dict[int, list[Sample]]


def written(servers: str, topic: str, *, partitions: int, count: int, seed: int = 0) -> Records:
    """Write `count` unusual and ordinary records to each partition, with one codec each. Returns the records."""
    found: Records = {}
    for partition in range(partitions):
        found[partition] = samples(count, seed=seed + partition, null_headers=False)
        codec = CODECS[partition % len(CODECS)]
        kafka_python.produce(servers, topic, partition, found[partition], codec, idempotent=True)
    return found


def kafka_rows(spark: SparkSession, servers: str, topic: str, **options: object) -> DataFrame:
    """A batch read of a topic by the stock connector, with headers."""
    return spark.read.format("kafka").options(**_options(servers, topic, options)).load()


def kafka_stream(spark: SparkSession, servers: str, topic: str, **options: object) -> DataFrame:
    """The same as a stream."""
    return spark.readStream.format("kafka").options(**_options(servers, topic, options)).load()


def _options(servers: str, topic: str, more: dict[str, object]) -> dict[str, str]:
    base = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    return base | {key: str(value) for key, value in more.items()}


def by_partition(frame: DataFrame) -> dict[int, dict[int, Sample]]:
    """All rows: partition -> offset -> record. Errors: AssertionError if an offset occurs twice."""
    columns = ["key", "value", "partition", "offset", "unix_millis(timestamp) AS time", "headers"]
    found: dict[int, dict[int, Sample]] = {}
    for row in frame.selectExpr(*columns).collect():
        records = found.setdefault(row.partition, {})
        assert row.offset not in records, f"offset {row.offset} of partition {row.partition} occurs twice"
        records[row.offset] = Sample(_bytes(row.key), _bytes(row.value), row.time, _headers(row.headers))
    return found


def numbered(records: Records, *, start: int = 0, end: int | None = None) -> dict[int, dict[int, Sample]]:
    """The written records in a range of offsets, in the shape of `by_partition`."""
    return {partition: dict(list(enumerate(each))[start:end]) for partition, each in records.items()}


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(headers: Iterable[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header.key, _bytes(header.value)) for header in headers or ())


def consumed(servers: str, topic: str, partitions: int) -> Records:
    """All records of a topic, read with kafka-python."""
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=None)) as consumer:
        ends = consumer.end_offsets([TopicPartition(topic, partition) for partition in range(partitions)])
    return kafka_python.consume(servers, topic, {place.partition: end for place, end in ends.items()})


def contents(records: Records) -> Counter[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    """How often each combination of key, value and headers occurs, at any offset and time."""
    return Counter((each.key, each.value, each.headers) for part in records.values() for each in part)


def delete_before(servers: str, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before an offset."""
    with connected(servers) as connection:
        parts = [{"PartitionIndex": 0, "Offset": offset}]
        wanted = {"Topics": [{"Name": topic, "Partitions": parts}], "TimeoutMs": 10_000}
        answer = connection.call("DeleteRecords", 1, wanted)
    assert answer["Topics"][0]["Partitions"][0]["LowWatermark"] == offset, answer
