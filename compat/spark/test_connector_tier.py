"""The stock connector reads a mostly tiered topic completely: as a batch, as a stream, and by time."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat.clients import confluent
from compat.clients.samples import CODECS, Sample
from compat.spark.rows import Records, by_partition, kafka_rows, kafka_stream, numbered
from compat.tiered.site import EARLIEST, EARLIEST_LOCAL, ONLY_THE_ACTIVE_ONE, TIERED, YESTERDAY_MS, Site, Sites

COUNT, VALUE_BYTES = 3_000, 400
STEP_MS = (
    20_000  # one segment for each hour of records, which works with Apache Kafka too: its segments by size are larger
)


@dataclass(frozen=True)
class Stock:
    """A topic with a partition for each codec. The local log has only the last segments."""

    servers: str
    topic: str
    records: Records


@pytest.fixture(scope="module")
def stock(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[Stock]:
    site, topic = tiered_site, new_topic_name("stock")
    site.create(topic, {**TIERED, **ONLY_THE_ACTIVE_ONE}, partitions=len(CODECS))
    draws = random.Random(406)
    records = {}
    for partition, codec in enumerate(CODECS):
        values = (base64.b64encode(draws.randbytes(VALUE_BYTES * 3 // 4)) for _ in range(COUNT))
        records[partition] = [
            Sample(b"%d" % (number % 7), value, YESTERDAY_MS + STEP_MS * number, (("one", b"1"),) if number % 3 else ())
            for number, value in enumerate(values)
        ]
        confluent.produce(
            site.address, topic, partition, records[partition], codec, idempotent=True, **{"batch.size": 20_000}
        )
    for partition in range(len(CODECS)):
        Sites([site]).expect(lambda site, partition=partition: len(site.local_segments(topic, partition)), 1)
        assert site.offset(topic, EARLIEST, partition=partition)[1] == 0
        assert site.offset(topic, EARLIEST_LOCAL, partition=partition)[1] > COUNT // 2, (
            "most records must be in the tier"
        )
    yield Stock(site.address, topic, records)
    site.delete_topic(topic)


def test_a_batch_read_finds_tiered_and_local_records(spark: SparkSession, stock: Stock) -> None:
    assert by_partition(kafka_rows(spark, stock.servers, stock.topic, minPartitions=9)) == numbered(stock.records)


def test_a_batch_by_time_begins_and_ends_within_the_tier(spark: SparkSession, stock: Stock) -> None:
    times = {
        "startingTimestamp": YESTERDAY_MS + 500 * STEP_MS - 5, "endingTimestamp": YESTERDAY_MS + 1_000 * STEP_MS + 1,
    }  # fmt: skip
    found = by_partition(kafka_rows(spark, stock.servers, stock.topic, **times))
    assert found == numbered(stock.records, start=500, end=1_001)


def test_a_stream_passes_from_the_tier_to_the_local_log(spark: SparkSession, stock: Stock, tmp_path: Path) -> None:
    stream = kafka_stream(spark, stock.servers, stock.topic, startingOffsets="earliest", maxOffsetsPerTrigger=6_000)
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "rows"))
    query.awaitTermination()
    assert len([each for each in query.recentProgress if each.numInputRows]) == 3
    assert by_partition(spark.read.parquet(str(tmp_path / "rows"))) == numbered(stock.records)
