"""A topic, its tier or its broker changes while a job reads: the job returns all rows or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from compat.spark.source import Source, fails, offsets_of, read, started
from compat.tiered.site import EARLIEST, Records, Sites
from kbroker.tiered.layout import KINDS


@pytest.fixture
def topic(source: Source, new_topic_name: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """Three segments of ten records that only the tier has, and an active one of ten that only the broker has."""
    return source.filled(new_topic_name(request.node.originalname.removeprefix("test_")[:40]), [0, 2, 4, 6])


def one_by_one(frame: DataFrame) -> Iterator[Row]:
    """The rows of a query that is planned now, and whose tasks run one by one on demand."""
    return frame.select("offset").toLocalIterator(prefetchPartitions=False)


def begun(spark: SparkSession, source: Source, topic: str, **options: object) -> Iterator[Row]:
    """The rows of a topic, after the first task has run. With minPartitions each segment has its own task."""
    rows = one_by_one(source.rows(spark, topic, minPartitions=4, **options))
    assert [next(rows).offset for _ in range(10)] == list(range(10))
    return rows


def await_objects(source: Source, topic: str, count: int) -> None:
    """Wait until the tier has this number of a topic's segments."""
    Sites([source.site]).expect(lambda _: source.object_count(topic), count)


def without(segment: Path) -> None:
    """Remove a segment with all its files from a directory tier."""
    for kind in KINDS:
        segment.with_suffix(f".{kind}").unlink(missing_ok=True)


def test_without_the_broker_only_the_tail_cannot_be_read(
    spark: SparkSession, tmp_path: Path, new_topic_name: Callable[[str], str]
) -> None:
    with started(tmp_path) as source:
        name = source.filled(new_topic_name("stopped"), [0, 2, 4, 6])
        rows = begun(spark, source, name)
        source.site.broker.kill()
        assert [next(rows).offset for _ in range(20)] == list(range(10, 30))
        with fails("no broker answers at"):
            next(rows)
        assert offsets_of(source.stored_rows(spark, name)) == list(range(30))


def test_a_planned_range_in_the_tier_needs_no_broker(
    spark: SparkSession, tmp_path: Path, new_topic_name: Callable[[str], str]
) -> None:
    with started(tmp_path) as source:
        name = source.filled(new_topic_name("planned"), [0, 2, 4, 6])
        rows = begun(spark, source, name, endingOffsets=f'{{"{name}": {{"0": 30}}}}')
        source.site.broker.kill()
        assert [row.offset for row in rows] == list(range(10, 30))


def test_segments_of_successive_leaders_are_read_from_the_tier(
    spark: SparkSession, tmp_path: Path, new_topic_name: Callable[[str], str]
) -> None:
    with started(tmp_path) as source:
        name = source.filled(new_topic_name("leaders"), [0, 2])
        for hour in (4, 6, 8):
            source.site.restart()
            source.site.await_leaders(name)
            source.site.produce(name, Records([hour], records=10).batches())
        Sites([source.site]).expect(lambda site: site.local_segments(name), [40])
        assert len(source.site.epochs(name)) > 2
        rows = begun(spark, source, name, endingOffsets=f'{{"{name}": {{"0": 40}}}}')
        source.site.broker.kill()
        assert [row.offset for row in rows] == list(range(10, 40))
        assert offsets_of(source.stored_rows(spark, name)) == list(range(40))


def test_records_tiered_during_a_job_are_read_once(spark: SparkSession, source: Source, topic: str) -> None:
    rows = begun(spark, source, topic)
    # Records that only the broker had when the job was planned are now only in the tier.
    source.site.produce(topic, Records([8, 10], records=10).batches())
    Sites([source.site]).expect(lambda site: site.local_segments(topic), [50])
    assert [row.offset for row in rows] == list(range(10, 40))


def test_a_recreated_topic_is_an_error(spark: SparkSession, source: Source, topic: str) -> None:
    rows = begun(spark, source, topic)
    source.site.delete_topic(topic)
    source.filled(topic, [0, 2, 4, 6])
    with fails(f"{topic}", "deleted and created again"):
        list(rows)


def test_a_deleted_topic_is_an_error(spark: SparkSession, source: Source, topic: str) -> None:
    rows = begun(spark, source, topic)
    source.site.delete_topic(topic)
    await_objects(source, topic, 0)
    with fails(f"{topic}: there is no such topic"):
        list(rows)


def test_records_that_expire_during_a_job_are_an_error(spark: SparkSession, source: Source, topic: str) -> None:
    rows = begun(spark, source, topic)
    source.site.delete_records(topic, 25)
    await_objects(source, topic, 1)
    with fails(f"{topic}-0 at offset 10", "the records up to offset 24 were deleted before they were read"):
        list(rows)


def test_records_that_expire_during_a_job_are_skipped_if_allowed(
    spark: SparkSession, source: Source, topic: str
) -> None:
    rows = begun(spark, source, topic, failOnDataLoss="false")
    source.site.delete_records(topic, 35)
    await_objects(source, topic, 0)
    assert [row.offset for row in rows] == list(range(35, 40))


def test_tiered_records_below_the_log_start_are_not_read(spark: SparkSession, source: Source, topic: str) -> None:
    source.site.delete_records(topic, 13)
    assert source.site.offset(topic, EARLIEST)[1] == 13
    assert offsets_of(source.rows(spark, topic)) == list(range(13, 40))


def test_a_damaged_object_is_named(spark: SparkSession, source: Source, topic: str) -> None:
    damaged = source.objects(topic)[1]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with fails(f"{topic}-0 at offset 10", damaged.name, "kbroker tier scrub"):
        source.rows(spark, topic).count()


def test_a_missing_object_is_named_with_its_store(spark: SparkSession, source: Source, topic: str) -> None:
    missing = source.objects(topic)[1]
    missing.unlink()
    with fails(f"{topic}-0 at offset 10", missing.name, "failOnDataLoss=false"):
        source.rows(spark, topic).count()
    with fails(f"{topic}-0 at offset 10", missing.name):
        source.stored_rows(spark, topic).count()
    kept = [*range(10), *range(20, 40)]
    assert offsets_of(source.rows(spark, topic, failOnDataLoss="false")) == kept


def test_without_a_broker_a_gap_is_an_error(spark: SparkSession, source: Source, topic: str) -> None:
    without(source.objects(topic)[1])
    with fails(f"{topic}-0 at offset 10", "no finished segment in the store has the offsets 10 to 19"):
        source.stored_rows(spark, topic).count()
    assert offsets_of(source.stored_rows(spark, topic, failOnDataLoss="false")) == [*range(10), *range(20, 30)]


def test_a_missing_or_damaged_index_loses_no_row(spark: SparkSession, source: Source, topic: str) -> None:
    first, second, _ = source.objects(topic, "index")
    first.unlink()
    second.write_bytes(b"\x00\x00\x00\xff\x00\x00\x00\x01")
    offsets = f'{{"{topic}": {{"0": 3}}}}'
    assert offsets_of(source.rows(spark, topic, startingOffsets=offsets, maxRecordsPerPartition=4)) == list(
        range(3, 40)
    )


def test_a_damaged_manifest_is_named_unless_a_broker_helps(spark: SparkSession, source: Source, topic: str) -> None:
    damaged = source.objects(topic, "manifest.json")[0]
    damaged.write_bytes(b"{")
    with fails(damaged.name, "a manifest cannot be read"):
        source.stored_rows(spark, topic).count()
    assert offsets_of(source.rows(spark, topic)) == list(range(40))


def test_an_unavailable_store_is_an_error(spark: SparkSession, source: Source, topic: str, tmp_path: Path) -> None:
    with fails(f"{tmp_path}/nothing", "is empty"):
        source.stored_rows(spark, topic, rsm__config__dir=str(tmp_path / "nothing")).count()
    with fails(f"{tmp_path}/nothing", "is empty"):
        read(spark, {"rsm.config.dir": str(tmp_path / "nothing"), "subscribePattern": ".*"}, {}).count()
    with fails(f"{topic}-0 at offset ", f" in object {topic}-"):  # of the task that fails first
        source.rows(spark, topic, rsm__config__dir=str(tmp_path / "nothing")).count()
