"""`replay`: records are written into a topic unchanged and once, even after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compat.clients import kafka_python
from compat.clients.samples import Sample, samples
from compat.spark.jobs import TIERED, fill, flags, json_samples, options
from compat.tiered.site import LATEST, LATEST_TIERED, Site, Sites
from kbroker.cli import main
from kbroker.spark.errors import IncompleteExport, InvalidOption, ReplayConflict, UnknownTopic
from kbroker.spark.jobs.export import Export, export
from kbroker.spark.jobs.replay import replay
from kbroker.spark.jobs.replay_sources import TopicSource
from kbroker.spark.jobs.target import PartitionWriter, TargetClient
from wire.compression import Codec
from wire.record_batch import Record

COUNT = 300
FOREVER = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def source(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[tuple[str, list[list[Sample]]]]:
    name = new_topic_name("origin")
    tiered_site.create(name, TIERED, partitions=2)
    records = [samples(COUNT, seed=40 + partition, null_headers=False) for partition in range(2)]
    for partition, each in enumerate(records):
        fill(tiered_site, name, each, partition=partition)
        Sites([tiered_site]).expect(
            lambda site, at=partition: site.offset(name, LATEST_TIERED, partition=at)[1] > 5, True
        )
    yield name, records
    tiered_site.delete_topic(name)


@pytest.fixture
def target(tiered_site: Site, new_topic_name: Callable[[str], str]) -> str:
    name = new_topic_name("copy")
    tiered_site.create(name, FOREVER, partitions=2)
    return name


def consumed(site: Site, topic: str, partitions: int = 2) -> list[list[Sample]]:
    counts = {at: site.offset(topic, LATEST, partition=at)[1] for at in range(partitions)}
    found = kafka_python.consume(site.address, topic, counts)
    return [found.get(at, []) for at in range(partitions)]


def run(spark: SparkSession, site: Site, target: str, **more: Any) -> Any:
    return replay(spark, target=target, options=options(site), **more)


def test_records_are_written_unchanged_and_once(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], target: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name, records = source
    done = run(spark, tiered_site, target, topic=name, codec=Codec.ZSTD)
    assert consumed(tiered_site, target) == records
    assert (done.is_resumed, done.written, done.warnings) == (False, {0: COUNT, 1: COUNT}, [])
    assert main(["spark", "replay", "-t", name, "--to", target, "--format", "json", *flags(tiered_site)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["is_resumed"], again["was_done"], again["written"]) == (True, True, {})
    assert main(["spark", "replay", "-t", name, "--to", target, *flags(tiered_site)]) == 0
    assert "is already complete, and nothing was written; use another --job-id to replay" in capsys.readouterr().err
    assert consumed(tiered_site, target) == records


def test_an_interrupted_replay_resumes(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], target: str
) -> None:
    """The killed task had written a plan, and the first records of one of two partitions."""
    name, records = source
    fill(tiered_site, target, json_samples(5))
    begin(spark, tiered_site, name, target, written=137)
    done = run(spark, tiered_site, target, topic=name, job_id="job-" + target)
    assert (done.is_resumed, done.before, done.written) == (True, {0: 137, 1: 0}, {0: COUNT - 137, 1: COUNT})
    first, second = consumed(tiered_site, target)
    assert first[5:] == records[0]
    assert second == records[1]


def test_a_replay_cannot_resume_if_its_source_has_expired(
    spark: SparkSession, tiered_site: Site, target: str, new_topic_name: Callable[[str], str]
) -> None:
    """A replay resumes by the number of written records, which needs the first records of the source."""
    name = new_topic_name("expiring")
    tiered_site.create(name, FOREVER)
    fill(tiered_site, name, json_samples(50))
    begin(spark, tiered_site, name, target, written=20)
    tiered_site.delete_records(name, 10)
    with pytest.raises(ReplayConflict, match=f"{name}-0 at offset 0: the records up to offset 9 expired since"):
        run(spark, tiered_site, target, topic=name, job_id="job-" + target)
    assert len(consumed(tiered_site, target)[0]) == 20


@pytest.mark.parametrize("limit", ["max.message.bytes", "segment.bytes"])
def test_batches_fit_the_limit_of_the_target(
    spark: SparkSession, tiered_site: Site, new_topic_name: Callable[[str], str], limit: str
) -> None:
    name, small = new_topic_name("large"), new_topic_name("taking-little")
    tiered_site.create(name, FOREVER)
    tiered_site.create(small, {**FOREVER, limit: "100000"})
    records = [Sample(b"k", bytes(size), 1_000) for size in (10_000, 45_000, 99_000, 1, 2, 60_000, 60_000, 3)]
    for each in records:
        fill(tiered_site, name, [each])
    run(spark, tiered_site, small, topic=name)
    assert consumed(tiered_site, small, 1) == [records]


def test_records_of_another_producer_fail_a_replay(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], target: str
) -> None:
    name, _ = source
    begin(spark, tiered_site, name, target, written=20)
    fill(tiered_site, target, [Sample(b"foreign", b"record", 1)])
    with pytest.raises(PySparkException, match=f"{target}-0 at offset 20: something else wrote to the target"):
        run(spark, tiered_site, target, topic=name, job_id="job-" + target)
    assert len(consumed(tiered_site, target)[0]) == 21


def begin(spark: SparkSession, site: Site, name: str, target: str, *, written: int) -> None:
    """Leave a target like a killed task: the plan is committed, and some records are written."""
    from kbroker.spark.jobs.replay import _plan  # noqa: PLC0415  (no public function stops a job after its plan)

    client = TargetClient({"bootstrap_servers": [site.address], "bootstrap_timeout_ms": 10_000})
    try:
        origin = TopicSource(spark, name, options(site))
        plan, is_resumed, _ = _plan(client, origin, target=target, job_id="job-" + target, by_key=False)
        assert not is_resumed
        writer = PartitionWriter(
            client, (target, 0), next_offset=plan.bases[0], codec=Codec.NONE, batch_bytes=1_000
        )  # fmt: skip
        rows = origin.rows(plan.ranges).where("partition = 0").orderBy("offset").limit(written)
        for row in rows.selectExpr("key", "value", "offset", "unix_millis(timestamp) AS ms", "headers").collect():
            headers = tuple((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ())
            key, value = (None if each is None else bytes(each) for each in (row.key, row.value))
            writer.write(Record(row.offset, row.ms, key, value, headers), source_offset=row.offset)
        writer.flush()
        assert writer.written == written
    finally:
        client.close()


def test_an_export_is_replayed_by_key_as_clients_place_keys(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], tmp_path: Path,
    new_topic_name: Callable[[str], str],
) -> None:  # fmt: skip
    name, records = source
    export(spark, topic=name, output=str(tmp_path / "out"), options=options(tiered_site))
    target = new_topic_name("keyed")
    tiered_site.create(target, FOREVER, partitions=3)
    done = run(spark, tiered_site, target, parquet=str(tmp_path / "out"), by_key=True)
    expected: list[list[Sample]] = [[], [], []]
    for partition, each in enumerate(records):
        for one in each:
            at = partition if one.key is None else (murmur2(one.key) & 0x7FFF_FFFF) % 3
            expected[at].append(one)
    assert consumed(tiered_site, target, 3) == expected
    assert sum(done.written.values()) == 2 * COUNT


def test_an_incomplete_export_cannot_be_replayed(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], target: str, tmp_path: Path
) -> None:
    """Half of a batch's files are in place."""
    name, _ = source
    output = str(tmp_path / "out")
    half = Export(
        spark, topic=name, output=output, options=options(tiered_site), decoding=None, into=None,
        max_records_per_batch=None,
    )  # fmt: skip
    assert "renaming" in (step.name for step in half.steps())
    with pytest.raises(IncompleteExport, match=r"out: the export is not complete: there is no _SUCCESS.* Remedy: "):
        run(spark, tiered_site, target, parquet=output)
    assert consumed(tiered_site, target) == [[], []]


def test_records_that_the_target_cannot_hold_are_refused_before_writing(
    spark: SparkSession, tiered_site: Site, source: tuple[str, list[list[Sample]]], tmp_path: Path,
    new_topic_name: Callable[[str], str],
) -> None:  # fmt: skip
    name, _ = source
    one = new_topic_name("one")
    tiered_site.create(one, FOREVER)
    with pytest.raises(ReplayConflict, match="the source has a partition 1, but the target has only 1 partitions"):
        run(spark, tiered_site, one, topic=name)
    stamped = new_topic_name("stamped")
    tiered_site.create(stamped, {**FOREVER, "message.timestamp.type": "LogAppendTime"}, partitions=2)
    with pytest.raises(ReplayConflict, match=r"message\.timestamp\.type=LogAppendTime"):
        run(spark, tiered_site, stamped, topic=name)
    with pytest.raises(UnknownTopic, match="nowhere: there is no such topic"):
        run(spark, tiered_site, "nowhere", topic=name)
    with pytest.raises(UnknownTopic, match="nothing: there is no such topic"):
        run(spark, tiered_site, one, topic="nothing")
    with pytest.raises(InvalidOption, match="cannot be read as Parquet"):
        run(spark, tiered_site, one, parquet=str(tmp_path / "nothing"))
    spark.createDataFrame([(b"k", 1)], "key binary, offset bigint").write.parquet(str(tmp_path / "short"))
    with pytest.raises(InvalidOption, match="have no column value, only key, offset"):
        run(spark, tiered_site, one, parquet=str(tmp_path / "short"))
    twice = spark.range(2).selectExpr(
        "CAST('k' AS BINARY) AS key", "CAST('v' AS BINARY) AS value", "0 AS partition", "7L AS offset",
        "TIMESTAMP'2026-01-31 12:00:00' AS timestamp",
    )  # fmt: skip
    twice.write.parquet(str(tmp_path / "twice"))
    with pytest.raises(InvalidOption, match="has 2 rows for 1 offsets of partition 0"):
        run(spark, tiered_site, one, parquet=str(tmp_path / "twice"))
    assert consumed(tiered_site, one, 1) == [[]]
