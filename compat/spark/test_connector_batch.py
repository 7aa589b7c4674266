"""Batch reads and writes with Spark's stock connector keep every record, key, header and timestamp."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from compat.brokers import Broker
from compat.clients.samples import START_MS, Sample
from compat.spark.rows import (
    Records,
    by_partition,
    consumed,
    contents,
    delete_before,
    kafka_rows,
    numbered,
    written,
)

NewTopic = Callable[..., str]
PARTITIONS, COUNT = 5, 300


@dataclass(frozen=True)
class Source:
    """A topic with records, which tests do not change."""

    servers: str
    topic: str
    records: dict[int, list[Sample]]

    def per_partition(self, numbers: dict[int, int]) -> str:
        """An option of the connector: for each partition an offset or a time."""
        return json.dumps({self.topic: {str(partition): number for partition, number in numbers.items()}})

    def first_at(self, partition: int, time_ms: int) -> int:
        """The first offset whose record is at or after a time."""
        return next(offset for offset, record in enumerate(self.records[partition]) if record.timestamp_ms >= time_ms)


@pytest.fixture(scope="module")
def source(broker: Broker, new_topic: NewTopic) -> Source:
    topic = new_topic("spark", partitions=PARTITIONS, retention_ms="-1")
    records = written(broker.bootstrap_servers, topic, partitions=PARTITIONS, count=COUNT)
    return Source(broker.bootstrap_servers, topic, records)


def test_a_batch_write_copies_every_record_of_a_batch_read(
    spark: SparkSession, source: Source, new_topic: NewTopic
) -> None:
    target = new_topic("spark", partitions=PARTITIONS)
    read = kafka_rows(spark, source.servers, source.topic)
    assert by_partition(read) == numbered(source.records)
    kinds = read.select("topic", "timestampType").distinct().collect()
    assert [(row.topic, row.timestampType) for row in kinds] == [(source.topic, 0)]
    writer = read.select("key", "value", "headers").write.format("kafka")
    writer.options(**{"kafka.bootstrap.servers": source.servers, "topic": target, "includeHeaders": "true"}).save()
    assert contents(consumed(source.servers, target, PARTITIONS)) == contents(source.records)


def test_a_batch_read_begins_and_ends_at_given_offsets(spark: SparkSession, source: Source) -> None:
    starts = {0: -2, 1: 17, 2: 250, 3: COUNT, 4: 0}
    ends = {0: -1, 1: 18, 2: COUNT, 3: -1, 4: 123}
    read = kafka_rows(
        spark,
        source.servers,
        source.topic,
        startingOffsets=source.per_partition(starts),
        endingOffsets=source.per_partition(ends),
    )
    wanted = {
        0: numbered(source.records)[0],
        1: numbered(source.records, start=17, end=18)[1],
        2: numbered(source.records, start=250)[2],
        4: numbered(source.records, end=123)[4],
    }
    assert by_partition(read) == wanted


def test_a_batch_read_begins_and_ends_at_times(spark: SparkSession, source: Source) -> None:
    begin, end = START_MS + 1_005, START_MS + 2_500
    everywhere = kafka_rows(spark, source.servers, source.topic, startingTimestamp=begin, endingTimestamp=end)
    wanted = {
        partition: dict(list(enumerate(records))[source.first_at(partition, begin) : source.first_at(partition, end)])
        for partition, records in source.records.items()
    }
    assert by_partition(everywhere) == wanted
    each = kafka_rows(
        spark,
        source.servers,
        source.topic,
        startingOffsetsByTimestamp=source.per_partition(dict.fromkeys(range(PARTITIONS), begin) | {3: 0}),
        endingOffsetsByTimestamp=source.per_partition(dict.fromkeys(range(PARTITIONS), end) | {2: begin}),
    )
    del wanted[2]
    wanted[3] = numbered(source.records, end=source.first_at(3, end))[3]
    assert by_partition(each) == wanted


def test_a_start_after_all_records_fails_unless_latest_is_allowed(spark: SparkSession, source: Source) -> None:
    late = {"startingTimestamp": START_MS + 10_000_000}
    with pytest.raises(Exception, match="No offset matched from request"):
        kafka_rows(spark, source.servers, source.topic, **late).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert kafka_rows(spark, source.servers, source.topic, **late, **strategy).count() == 0


def test_a_read_has_the_requested_number_of_tasks(spark: SparkSession, source: Source) -> None:
    cut = kafka_rows(spark, source.servers, source.topic, minPartitions=13)
    assert cut.rdd.getNumPartitions() >= 13
    assert by_partition(cut) == numbered(source.records)


def test_expired_records_fail_a_batch_read_unless_loss_is_allowed(
    spark: SparkSession, broker: Broker, new_topic: NewTopic
) -> None:
    servers = broker.bootstrap_servers
    topic = new_topic("spark-loss", retention_ms="-1")
    records: Records = written(servers, topic, partitions=1, count=100)
    delete_before(servers, topic, 40)
    start = json.dumps({topic: {"0": 10}})
    with pytest.raises(Exception, match="Some data may have been lost"):
        kafka_rows(spark, servers, topic, startingOffsets=start).count()
    loose = kafka_rows(spark, servers, topic, startingOffsets=start, failOnDataLoss="false")
    assert by_partition(loose) == numbered(records, start=40)
