"""`readStream.format("kbroker")`: each record once over restarts, in batches within the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from compat.spark.source import Sink, Source, fails
from compat.tiered.site import Records

AVAILABLE_NOW_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


@pytest.fixture
def topic(source: Source, new_topic_name: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """Two partitions, each with three segments of ten records only in the tier, and ten records only on the broker."""
    stem = request.node.originalname.removeprefix("test_")[:40]
    return source.filled(new_topic_name(stem), [0, 2, 4, 6], partitions=2)


def write_more(source: Source, topic: str, hour: int, *, partitions: int = 2) -> None:
    """Write ten more records to each partition, which closes the previous segment."""
    for partition in range(partitions):
        source.site.produce(topic, Records([hour], records=10).batches(), partition=partition)


def test_a_restarted_stream_resumes_and_respects_its_batch_limit(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    def stream(limit: int) -> DataFrame:
        return source.stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger=limit)

    assert sink.run(stream(30)) == [30, 30, 20]
    write_more(source, topic, 8)
    write_more(source, topic, 10)
    # The first batch after a restart respects the limit too, which may have changed.
    assert sink.run(stream(16)) == [16, 16, 8]
    assert sink.offsets() == {0: list(range(60)), 1: list(range(60))}


def test_available_now_reads_everything_in_one_batch(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    stream = source.stream(spark, topic, startingOffsets="earliest")
    assert sink.finish(stream) == [80]
    write_more(source, topic, 8)
    assert sink.finish(stream) == [20]
    assert sink.finish(stream) == []
    assert sink.offsets() == {0: list(range(50)), 1: list(range(50))}


def test_a_batch_limit_with_sparks_wrapper_is_refused(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    spark.conf.set(AVAILABLE_NOW_WRAPPER, "true")
    try:
        assert sink.finish(source.stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)) == [30]
        with fails("maxOffsetsPerTrigger cannot be enforced"):
            sink.finish(source.stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger=30))
        assert sink.finish(source.stream(spark, topic, startingOffsets="earliest")) == [50]
    finally:
        spark.conf.unset(AVAILABLE_NOW_WRAPPER)


def test_a_stream_keeps_its_start_if_its_first_batch_fails(
    spark: SparkSession, source: Source, topic: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def fail(rows: DataFrame, number: int) -> None:
        raise AssertionError(f"batch {number} of {rows.count()} rows fails")

    def keep(rows: DataFrame, number: int) -> None:
        del number
        seen.extend((row.partition, row.offset) for row in rows.collect())

    def start(each: Callable[[DataFrame, int], None]) -> StreamingQuery:
        writer = source.stream(spark, topic).writeStream.foreachBatch(each)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(Exception, match="batch 0 of 0 rows fails"):
        start(fail).awaitTermination()
    write_more(source, topic, 8)
    query = start(keep)
    query.processAllAvailable()
    query.stop()
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(40, 50)]


def test_a_new_partition_is_read_from_its_beginning(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    stream = source.stream(spark, topic, startingOffsets="latest")
    assert sink.run(stream) == []
    source.site.create_partitions(topic, 3)
    write_more(source, topic, 8, partitions=3)
    assert sink.run(stream) == [30]
    assert sink.offsets() == {0: list(range(40, 50)), 1: list(range(40, 50)), 2: list(range(10))}


def test_records_that_expire_before_a_stream_fail_or_are_skipped(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    query = sink.start(source.stream(spark, topic, **options), available_now=True)
    query.awaitTermination()
    source.site.delete_records(topic, 25)
    with fails(f"{topic}-0 at offset 10", "the records up to offset 24 were deleted before they were read"):
        sink.run(source.stream(spark, topic, **options))
    sink.run(source.stream(spark, topic, **options, failOnDataLoss="false"))
    assert sink.offsets() == {0: [*range(10), *range(25, 40)], 1: list(range(40))}


def test_a_recreated_topic_fails_a_stream_with_a_checkpoint(
    spark: SparkSession, source: Source, topic: str, sink: Sink
) -> None:
    sink.run(source.stream(spark, topic, startingOffsets="earliest"))
    source.site.delete_topic(topic)
    source.filled(topic, [0, 2, 4, 6, 8, 10], partitions=2)
    with fails(topic, "deleted and created again"):
        sink.run(source.stream(spark, topic, startingOffsets="earliest"))


def test_a_stream_reads_a_store_without_a_broker(spark: SparkSession, source: Source, topic: str, sink: Sink) -> None:
    options = {**source.store, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    stream = spark.readStream.format("kbroker").options(**options).load()
    assert sink.run(stream) == [40, 20]
    assert sink.offsets() == {0: list(range(30)), 1: list(range(30))}
