"""Structured Streaming with Spark's stock connector: the start of a stream, its batch limit, and its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from compat.brokers import Broker
from compat.clients import kafka_python
from compat.clients.samples import START_MS, samples
from compat.spark.rows import (
    by_partition,
    consumed,
    contents,
    delete_before,
    kafka_stream,
    numbered,
    written,
)

NewTopic = Callable[..., str]
PARTITIONS, COUNT = 3, 250


def to_parquet(stream: DataFrame, directory: Path) -> StreamingQuery:
    """Copy the current records to files below a directory that also contains the checkpoint."""
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start(str(directory / "rows"))
    query.awaitTermination()
    return query


def test_a_stream_respects_its_batch_limit_and_resumes(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    servers, topic = broker.bootstrap_servers, new_topic("spark-stream", partitions=PARTITIONS, retention_ms="-1")
    records = written(servers, topic, partitions=PARTITIONS, count=COUNT)
    stream = kafka_stream(spark, servers, topic, startingOffsets="earliest", maxOffsetsPerTrigger=150)
    first = to_parquet(stream, tmp_path)
    taken = [progress.numInputRows for progress in first.recentProgress if progress.numInputRows]
    assert sum(taken) == PARTITIONS * COUNT
    assert max(taken) <= 150
    assert by_partition(spark.read.parquet(str(tmp_path / "rows"))) == numbered(records)
    ends = json.loads(first.lastProgress.sources[0].endOffset)
    assert ends == {topic: {str(partition): COUNT for partition in range(PARTITIONS)}}
    more = written(servers, topic, partitions=PARTITIONS, count=20, seed=77)
    second = to_parquet(stream, tmp_path)
    assert sum(progress.numInputRows for progress in second.recentProgress) == PARTITIONS * 20
    both = {partition: records[partition] + more[partition] for partition in records}
    assert by_partition(spark.read.parquet(str(tmp_path / "rows"))) == numbered(both)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ({"startingOffsets": '{"TOPIC": {"0": 7}}'}, 7),
        ({"startingOffsets": '{"TOPIC": {"0": -2}}'}, 0),
        ({"startingTimestamp": START_MS + 1_205}, 121),
        ({"startingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {START_MS + 1_205}}}}}'}, 121),
        ({"startingOffsets": "latest"}, 200),
    ],
    ids=["offsets", "earliest", "timestamp", "timestamps", "latest"],
)
def test_a_stream_begins_at_its_starting_offsets(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, start: dict[str, object], first: int
) -> None:
    servers, topic = broker.bootstrap_servers, new_topic("spark-start", retention_ms="-1")
    early = samples(209, seed=1, null_headers=False)[9:]  # except for the unusual ones, timestamps are 10 ms apart
    kafka_python.produce(servers, topic, 0, early, "lz4", idempotent=False)
    assert early[121].timestamp_ms == START_MS + 1_210
    options = {key: str(value).replace("TOPIC", topic) for key, value in start.items()}
    table = topic.replace("-", "_")
    query = kafka_stream(spark, servers, topic, **options).writeStream.format("memory").queryName(table).start()
    try:
        query.processAllAvailable()
        late = samples(20, seed=2, null_headers=False)
        kafka_python.produce(servers, topic, 0, late, "none", idempotent=False)
        query.processAllAvailable()
        assert by_partition(spark.table(table)) == numbered({0: early + late}, start=first)
    finally:
        query.stop()


def test_a_stream_writes_the_columns_of_its_rows(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    source = new_topic("spark-from", partitions=PARTITIONS, retention_ms="-1")
    target = new_topic("spark-to", partitions=PARTITIONS)
    records = written(servers, source, partitions=PARTITIONS, count=100)
    stream = kafka_stream(spark, servers, source, startingOffsets="earliest", maxOffsetsPerTrigger=120)
    moved = stream.selectExpr(
        "key", "value", "headers", f"'{target}' AS topic", f"({PARTITIONS - 1} - partition) AS partition"
    )
    writer = moved.writeStream.format("kafka").trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
    writer.options(**{"kafka.bootstrap.servers": servers, "includeHeaders": "true"}).start().awaitTermination()
    found = consumed(servers, target, PARTITIONS)
    for partition in range(PARTITIONS):
        mirrored = {PARTITIONS - 1 - partition: records[partition]}
        assert contents({0: found[PARTITIONS - 1 - partition]}) == contents(mirrored)


def test_expired_records_fail_a_stream_unless_loss_is_allowed(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    servers, topic = broker.bootstrap_servers, new_topic("spark-gone", retention_ms="-1")
    records = written(servers, topic, partitions=1, count=100)
    to_parquet(kafka_stream(spark, servers, topic, startingOffsets="earliest"), tmp_path)
    more = written(servers, topic, partitions=1, count=100, seed=5)
    delete_before(servers, topic, 150)
    with pytest.raises(Exception, match="Some data may have been lost"):
        to_parquet(kafka_stream(spark, servers, topic, startingOffsets="earliest"), tmp_path)
    loose = kafka_stream(spark, servers, topic, startingOffsets="earliest", failOnDataLoss="false")
    to_parquet(loose, tmp_path)
    wanted = numbered({0: records[0]})[0] | numbered({0: records[0] + more[0]}, start=150)[0]
    assert by_partition(spark.read.parquet(str(tmp_path / "rows"))) == {0: wanted}
