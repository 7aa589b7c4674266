"""`format("kbroker-segments")`: the segments of the tier as a table, and their events as a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from compat.spark.source import Source, fails, offsets_of, started
from kbroker.spark.data_sources import SEGMENTS
from wire.record_batch import batches


@pytest.fixture(scope="module")
def topic(source: Source, new_topic_name: Callable[[str], str]) -> str:
    """Two partitions, each with three segments of ten records in the tier."""
    return source.filled(new_topic_name("segments"), [0, 2, 4, 6], partitions=2)


def events(spark: SparkSession, directory: Path, options: dict[str, str]) -> list[Row]:
    """All current events, read by a stream."""
    stream = spark.readStream.format(SEGMENTS).options(**options).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start(str(directory / "events")).awaitTermination()
    return spark.read.parquet(str(directory / "events")).collect()


def test_a_stream_of_events_has_only_those_of_assigned_partitions(
    spark: SparkSession, source: Source, topic: str, tmp_path: Path
) -> None:
    found = events(spark, tmp_path, {**source.broker, "assign": json.dumps({topic: [1]})})
    assert {(row.topic, row.partition) for row in found} == {(topic, 1)}
    finished = [row.segment_id for row in found if row.state == "COPY_SEGMENT_FINISHED"]
    table = spark.read.format(SEGMENTS).options(**source.broker, assign=json.dumps({topic: [1]})).load()
    assert sorted(finished) == sorted(row.segment_id for row in table.collect())
    assert len(finished) == 3


def test_the_brokers_settings_file_is_read_only_by_the_driver(
    spark: SparkSession, source: Source, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"remote.log.storage.system.enable=true\nrsm.config.dir={source.site.tier_directory}\n")
    table = spark.read.format(SEGMENTS).options(**{"kbroker.config": str(file), "subscribe": topic}).load()
    parts = table.rdd  # this plans the query
    file.unlink()
    assert sorted((row.partition, row.start_offset) for row in parts.collect()) == [
        (partition, start) for partition in range(2) for start in (0, 10, 20)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest"},
        {"startingTimestamp": "5"},
        {"endingOffsets": '{"orders": {"0": 5}}'},
    ],
)
def test_a_table_of_segments_refuses_a_range(spark: SparkSession, source: Source, options: dict[str, str]) -> None:
    with fails("have no meaning for segments"):
        spark.read.format(SEGMENTS).options(**source.broker, **options).load().count()


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"orders": {"0": 5}}'},
        {"startingTimestamp": "5"},
        {"startingOffsets": "earliest", "endingTimestamp": "5"},
    ],
)
def test_a_stream_of_events_cannot_begin_at_an_offset(
    spark: SparkSession, source: Source, options: dict[str, str], tmp_path: Path
) -> None:
    with fails("a stream of segments cannot begin"):
        events(spark, tmp_path, {**source.broker, **options})


def test_a_checkpoint_of_another_stream_is_refused(
    spark: SparkSession, source: Source, topic: str, tmp_path: Path
) -> None:
    stream = source.stream(spark, topic, startingOffsets="earliest").writeStream.format("noop")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    stream.start().awaitTermination()
    with fails("the offsets of the checkpoint are not from this source"):
        events(spark, tmp_path, dict(source.broker))


@pytest.mark.parametrize("position", [-1, 16], ids=["records", "format"])
def test_m10_a_damaged_metadata_batch_loses_no_row(spark: SparkSession, tmp_path: Path, position: int) -> None:
    with started(tmp_path / "broker") as source:
        source.filled("rotten", [0, 2, 4, 6])
        assert source.site.broker.log_directory is not None
        (log,) = (
            path
            for path in source.site.broker.log_directory.glob("__remote_log_metadata-*/*.log")
            if path.stat().st_size
        )
        data = bytearray(log.read_bytes())
        second = list(batches(bytes(data)))[1]  # the first copy is finished
        data[second.position + position % second.size] ^= 1
        with log.open("r+b") as file:
            file.write(data)
        states = [row.state for row in events(spark, tmp_path, dict(source.broker))]
        assert sorted(states) == ["COPY_SEGMENT_FINISHED"] * 2 + ["COPY_SEGMENT_STARTED"] * 3
        table = spark.read.format(SEGMENTS).options(**source.broker).load().orderBy("start_offset")
        assert [row.state.removeprefix("COPY_SEGMENT_") for row in table.collect()] == [
            "STARTED", "FINISHED", "FINISHED",
        ]  # fmt: skip
        assert offsets_of(source.rows(spark, "rotten")) == list(range(40))
