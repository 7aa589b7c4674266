"""`audit` and `catalog`: the contents of the tier, and damage in it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from compat.spark.source import Source, fails, started
from compat.tiered.site import ONLY_THE_ACTIVE_ONE, TIERED, Records, Site, Sites
from kbroker.cli import main
from kbroker.spark.errors import InvalidOption, StoreUnavailable, UnknownTopic
from kbroker.spark.jobs.audit import audit
from kbroker.spark.jobs.catalog import catalog, follow, segments
from kbroker.tiered.api import StoredObject
from kbroker.tiered.local import LocalRemoteStorage

HOURS = [0, 2, 4, 6, 8]
TWICE_MS = 1_761_436_800_000  # 2025-10-26 02:00 in Berlin, before the clocks are set back


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, kafka_libraries: Path) -> Iterator[Source]:
    assert kafka_libraries.is_dir()  # the schemas of its requests
    with started(tmp_path_factory.mktemp("audited")) as made:
        made.filled("sound", HOURS, partitions=2)
        made.filled("worn", HOURS)
        yield made


Run = Callable[..., tuple[int, list[dict[str, Any]], dict[str, Any]]]


@pytest.fixture
def run(source: Source, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kbroker spark audit`. Returns its exit code, findings and summary."""

    def run(*words: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        options = {**source.broker, **source.store}
        given = [word for pair in options.items() for word in ("--option", "=".join(pair))]
        code = main(["spark", "audit", "--format", "json", *given, *words])
        *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
        return code, found, summary

    return run


def test_an_intact_tier_has_no_findings(spark: SparkSession, source: Source, run: Run) -> None:
    code, found, summary = run("-t", "sound")
    assert (code, found, summary["segments"], summary["read_segments"]) == (0, [], 8, 8)
    assert summary["objects"] > 8
    for partition in summary["partitions"]:
        assert (partition["log_start_offset"], partition["local_log_start_offset"], partition["end_offset"]) == (
            0,
            40,
            50,
        )
        assert [(each["start_offset"], each["end_offset"]) for each in partition["segments"]] == [
            (at, at + 9) for at in range(0, 40, 10)
        ]
        assert all(each["is_used"] and not each["problems"] for each in partition["segments"])
    alone = audit(spark, options=source.store, topics=["sound"])
    assert (alone.findings, alone.notes, alone.segments) == ([], [], 8)


@pytest.mark.usefixtures("spark")
def test_an_audit_finds_the_same_damage_as_scrub(
    source: Source, run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logs, times = source.objects("worn"), source.objects("worn", "timeindex")
    kept = {path: path.read_bytes() for path in (logs[0], logs[1], times[2], logs[3])}
    damaged = bytearray(kept[logs[0]])
    damaged[70] ^= 1
    logs[0].write_bytes(damaged)
    logs[1].unlink()
    times[2].unlink()
    logs[3].write_bytes(kept[logs[3]][:-1])
    try:
        code, found, summary = run("-t", "worn", "--html", str(tmp_path / "audit.html"))
        assert code == 3
        assert sorted(each["problem"] for each in found) == ["damage", "missing", "missing", "size"]
        assert [each["text"] for each in found if each["problem"] == "damage"] == [
            "00000000000000000000.log: at byte 0: the batch at offset 0 has a wrong CRC"
        ]
        assert sum(len(each["problems"]) for each in summary["partitions"][0]["segments"]) == 4
        page = (tmp_path / "audit.html").read_text()
        assert "4 findings: 1 damage, 2 missing, 1 size" in page
        words = ["--override", f"rsm.config.dir={source.site.tier_directory}", "-b", source.site.address]
        assert main(["tier", "scrub", "--deep", "-t", "worn", "--format", "json", *words]) == 3
        *scrubbed, _ = map(json.loads, capsys.readouterr().out.splitlines())
        assert sorted(map(json.dumps, scrubbed)) == sorted(map(json.dumps, found))
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_a_segment_without_a_manifest_is_a_gap(spark: SparkSession, source: Source) -> None:
    """Without a broker: a segment and its manifest are gone."""
    gone, behind = source.objects("worn")[1:3]
    kept = {path: path.read_bytes() for path in gone.parent.glob(f"{gone.stem}.*")}
    for path in kept:
        path.unlink()
    try:
        found = audit(spark, options=source.store, topics=["worn"], deep=False).findings
    finally:
        for path, data in kept.items():
            path.write_bytes(data)
    where = f"the offsets 10 to 19, before {behind.stem[21:]}, are in no segment of the log's history"
    assert [each.line() for each in found] == [f"worn-0: {where}: no other copy is known"]


def test_an_audit_reports_damaged_manifests_and_continues(
    spark: SparkSession, source: Source, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, segment = source.objects("worn", "manifest.json"), source.objects("worn")[3]
    kept = {path: path.read_bytes() for path in (*manifests, segment)}
    damaged = bytearray(kept[segment])
    damaged[70] ^= 1
    alone = [word for pair in source.store.items() for word in ("--option", "=".join(pair))]
    try:
        segment.write_bytes(damaged)
        for path, data in zip(manifests, (b"", b"garbage", kept[manifests[0]]), strict=False):
            path.write_bytes(data)
        assert main(["spark", "audit", "--format", "json", "-t", "worn", *alone]) == 3
        *found, summary = map(json.loads, capsys.readouterr().out.splitlines())
        # The audit reads the segment after them.
        assert [each["object"].rpartition(".")[2] for each in found] == ["json"] * 3 + ["log"]
        assert [each["problem"] for each in found] == ["damage"] * 4
        assert all("Remedy: restore it, or name a broker" in each["text"] for each in found[:3])
        assert summary["read_segments"] == 1
        # With a broker they are not needed: the audit reads all segments, and the manifests too.
        code, found, summary = run("-t", "worn")
        assert (code, summary["read_segments"]) == (3, 4)
        assert [each["problem"] for each in found] == ["damage"] * 4
        with fails("manifest.json: a manifest cannot be read"):
            source.stored_rows(spark, "worn").count()
        segment.write_bytes(kept[segment])
        assert source.rows(spark, "worn").count() == 50
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_segments_that_move_or_expire_meanwhile_are_no_findings(
    spark: SparkSession, source: Source, new_topic_name: Callable[[str], str]
) -> None:
    """Segments leave the local log after the last reading of the metadata, and others expire before they are read."""
    name, site = source.filled(new_topic_name("moving"), [0, 2, 4]), source.site

    def meanwhile(text: str) -> None:
        if text == "comparing":
            site.produce(name, Records([6, 8], records=10).batches())
            Sites([site]).expect(lambda site: site.local_segments(name), [40])
        elif text.startswith("reading 2 "):
            site.delete_records(name, 15)
            Sites([site]).expect(lambda _: source.object_count(name), 3)

    report = audit(spark, options={**source.broker, **source.store}, topics=[name], progress=meanwhile)
    assert (report.read_segments, report.findings, report.deleted_meanwhile) == (2, [], 1)


class OnceListed(LocalRemoteStorage):
    """A store that changes right after it was listed."""

    happens: ClassVar[Callable[[], None] | None] = None

    def list_objects(self) -> Iterator[StoredObject]:
        found = list(super().list_objects())
        happens, OnceListed.happens = OnceListed.happens, None
        if happens is not None:
            happens()
        yield from found


def test_segments_deleted_after_the_listing_are_no_orphans(
    spark: SparkSession, source: Source, new_topic_name: Callable[[str], str]
) -> None:
    name, site = source.filled(new_topic_name("listed"), [0, 2, 4]), source.site

    def expire() -> None:
        site.delete_records(name, 15)
        Sites([site]).expect(lambda _: source.object_count(name), 1)

    OnceListed.happens = expire
    by_class = {"remote.log.storage.manager.class.name": f"{OnceListed.__module__}:{OnceListed.__qualname__}"}
    options = {**source.broker, **source.store, **by_class}
    report = audit(spark, options=options, topics=[name], deep=False, min_age_ms=0)
    assert (OnceListed.happens, report.segments, report.findings) == (None, 1, [])


def test_a_partition_without_known_segments_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """The metadata topic is lost; the log still begins before the local log."""

    def lose(site: Site) -> None:
        assert site.broker.log_directory is not None
        for path in site.broker.log_directory.glob("__remote_log_metadata-*"):
            shutil.rmtree(path)

    with started(tmp_path) as source:
        source.filled("lost", [0, 2, 4])
        source.site.restart(between=lose)
        source.site.await_leaders("lost")
        report = audit(spark, options={**source.broker, **source.store}, topics=["lost"])
    where = "the offsets 0 to 19, before the local log, are in no segment of the log's history"
    assert [each.line() for each in report.findings] == [f"lost-0: {where}: no other copy is known"]


def test_an_audit_that_cannot_run_fails(
    spark: SparkSession, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownTopic, match="nowhere: there is no such topic"):
        audit(spark, options={**source.broker, **source.store}, topics=["nowhere"])
    with pytest.raises(InvalidOption, match="no store is named"):
        audit(spark, options=source.broker)
    given = [word for pair in {**source.broker, **source.store}.items() for word in ("--option", "=".join(pair))]
    nowhere = str(tmp_path / "nowhere" / "audit.html")
    assert main(["spark", "audit", "--shallow", "-t", "sound", "--html", nowhere, *given]) == 1
    printed = capsys.readouterr()
    assert f"kbroker spark: cannot write {nowhere}: No such file or directory" in printed.err
    assert "sound" in printed.out, "the report is printed nevertheless"
    with pytest.raises(SystemExit):
        main(["spark", "audit", "--html", "s3a://lake/audit.html", *given])
    assert "s3a://lake/audit.html is not a local file" in capsys.readouterr().err
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        audit(spark, options={**source.broker, "rsm.config.dir": str(tmp_path / "nowhere")})
    assert main(["spark", "audit", "--option", "rsm.config.dirr=/x"]) == 1
    assert "kbroker spark: " in capsys.readouterr().err
    assert main(["spark", "audit", *given, "--spark-log", str(tmp_path / "nowhere" / "log")]) == 1
    assert f"kbroker spark: cannot write {tmp_path}/nowhere/log: No such file" in capsys.readouterr().err


# --- the catalog ---


def test_the_catalog_equals_the_metadata(
    spark: SparkSession, source: Source, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = {**source.broker, **source.store}
    rows = segments(spark, options=options, topics=["sound"]).orderBy("partition", "start_offset").collect()
    assert [(row.partition, row.start_offset, row.end_offset) for row in rows] == [
        (partition, at, at + 9) for partition in range(2) for at in range(0, 40, 10)
    ]
    assert {row.state for row in rows} == {"COPY_SEGMENT_FINISHED"}
    assert [row.size_bytes for row in rows] == [path.stat().st_size for path in source.objects("sound")]
    words = ["-b", source.site.address, "-t", "sound", "--format", "json"]
    assert main(["tier", "ls", *words]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    output = tmp_path / "catalog"
    assert main(["spark", "catalog", *words, "-o", str(output)]) == 0
    *printed, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["segment_id"] for each in printed] == [each["segment_id"] for each in listed]
    assert (summary["segments"], summary["bytes"]) == (8, sum(each["size_bytes"] for each in listed))
    assert spark.read.parquet(str(output)).count() == 8
    assert catalog(spark, options=source.store, topics=["sound"]).segments == 8


@pytest.mark.usefixtures("spark")
def test_a_closed_output_pipe_is_no_failure(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as left:
        monkeypatch.setattr(sys, "stdout", left)
        assert main(["spark", "catalog", "-b", source.site.address, "-t", "sound", "--format", "json"]) == 0


def test_each_metadata_event_is_written_once_over_restarts(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    def run() -> list[tuple[Any, ...]]:
        output, checkpoint = str(tmp_path / "events"), str(tmp_path / "checkpoint")
        follow(spark, options=source.broker, output=output, checkpoint=checkpoint, topics=["sound"], once=True)
        rows = spark.read.parquet(output).collect()
        return sorted((row.metadata_partition, row.metadata_offset, row.segment_id, row.state) for row in rows)

    first = run()
    assert len(first) == len({each[:2] for each in first}) == 16
    ids = {each[2] for each in first}
    for segment_id in ids:
        states = [each[3] for each in first if each[2] == segment_id]
        assert states == ["COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"]
    assert run() == first


def test_a_catalog_replaces_a_catalog_and_nothing_else(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    output = tmp_path / "out"
    spark.range(3).coalesce(1).write.parquet(str(output))
    with pytest.raises(InvalidOption, match=r"contains part-\S+ with other columns, which is not a catalog"):
        catalog(spark, options=source.broker, topics=["sound"], output=str(output))
    assert spark.read.parquet(str(output)).count() == 3
    shutil.rmtree(output)
    (output / "_temporary" / "0").mkdir(parents=True)  # left by a job that was killed while it wrote
    for _ in range(2):
        catalog(spark, options=source.broker, topics=["sound"], output=str(output))
        assert spark.read.parquet(str(output)).count() == 8


def test_catalog_times_are_right_when_clocks_are_set_back(
    spark: SparkSession, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local time of such an hour is ambiguous, and Python's rows would have local times."""
    source.site.create("clocks", {**TIERED, **ONLY_THE_ACTIVE_ONE, "retention.ms": "-1"})
    source.site.produce("clocks", Records([0, 2], start_ms=TWICE_MS).batches())
    Sites([source.site]).expect(lambda site: site.local_segments("clocks"), [1])
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        catalog(spark, options=source.broker, topics=["clocks"], output=str(tmp_path / "out"))
        rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("unix_millis(max_timestamp) AS ms").collect()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [row.ms for row in rows] == [TWICE_MS]
