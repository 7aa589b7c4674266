"""`export`: a topic as Parquet, each record exactly once, even if the job is stopped at any point."""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from compat.clients.samples import Sample, samples
from compat.spark.jobs import (
    DAY_MS,
    TIERED,
    as_sample,
    exported,
    fill,
    flags,
    json_samples,
    numbered,
    options,
    topics,
)
from compat.spark.session import SHORT_LIVED
from compat.tiered.site import LATEST_TIERED, Site, Sites
from compat.waiting import until
from kbroker.cli import main
from kbroker.spark.errors import ExportConflict, InvalidOption, UnknownTopic
from kbroker.spark.jobs.export import Export, export
from kbroker.spark.jobs.export_rows import identity_schema
from kbroker.spark.jobs.schemas import decoding_of

COUNT = 400
SMALL_JVM = ("--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}")
STEPS = ("planned", "written", "opened", "committed", "renaming", "renamed", "swept", "complete")


@pytest.fixture(scope="module")
def topic(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[tuple[str, list[list[Sample]]]]:
    """Two partitions with some records in the tier, and the others only on the broker."""
    name = new_topic_name("export")
    tiered_site.create(name, TIERED, partitions=2)
    records = [samples(COUNT, seed=partition, null_headers=False) for partition in range(2)]
    for partition, each in enumerate(records):
        fill(tiered_site, name, each, partition=partition)
        Sites([tiered_site]).expect(
            lambda site, at=partition: site.offset(name, LATEST_TIERED, partition=at)[1] > 5, True
        )
    yield name, records
    tiered_site.delete_topic(name)


@pytest.fixture
def small(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[str]:
    """An empty topic with one partition."""
    name = new_topic_name("small")
    tiered_site.create(name, TIERED)
    yield name
    tiered_site.delete_topic(name)


def started(spark: SparkSession, site: Site, topic: str, output: Path, **more: Any) -> Export:
    settings = {"decoding": None, "into": None, "max_records_per_batch": None, **more}
    return Export(spark, topic=topic, output=str(output), options=options(site), **settings)


def has(directory: Path, pattern: str) -> bool:
    """Whether a file matches. Unlike Path.glob, this continues if a directory is removed at the same time."""
    return any(glob.iglob(f"{directory}/{pattern}", recursive=True))


def stop_after(job: Export, step: str) -> None:
    """Run a job and abandon it after a step, as a kill does."""
    for done in job.steps():
        if done.name == step:
            return
    raise AssertionError(f"there was no step {step}")


# --- exported rows ---


def test_every_record_is_exported_unchanged(
    spark: SparkSession, tiered_site: Site, topic: tuple[str, list[list[Sample]]], tmp_path: Path
) -> None:
    name, records = topic
    done = export(spark, topic=name, output=str(tmp_path / "out"), options=options(tiered_site))
    rows = exported(tmp_path / "out")
    assert numbered(rows) == [(partition, offset) for partition in range(2) for offset in range(COUNT)]
    assert [as_sample(row) for row in rows] == [each for partition in records for each in partition]
    assert {row["topic"] for row in rows} == {name}
    assert all(row["date"] == row["timestamp"].strftime("%Y-%m-%d") for row in rows)
    assert (done.rows, done.bad_rows, done.commits, done.is_complete) == (2 * COUNT, 0, [0], True)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert not (tmp_path / "out" / "_kbroker_staging").exists()


def test_values_become_columns_and_bad_records_keep_a_reason(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json_samples(10)
    bad = [
        Sample(b"a", b'{"number": "one"}', 5, (("h", b"1"),)),
        Sample(None, b"not JSON", 6),
        Sample(b"c", b"\xff\x00", 7),
    ]
    fill(tiered_site, small, [*good[:5], *bad, Sample(b"t", None, 8), *good[5:]])
    words = [
        "spark", "export", "-t", small, "-o", str(tmp_path / "out"), "--decode", "json",
        "--schema", "number BIGINT, name STRING, at TIMESTAMP", "--format", "json",
        *flags(tiered_site),
    ]  # fmt: skip
    assert main(words) == 3
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["bad_rows"], summary["is_complete"]) == (11, 3, True)
    rows = exported(tmp_path / "out")
    assert "value" not in rows[0]
    assert [(row["offset"], row["number"]) for row in rows] == [
        *((offset, offset) for offset in range(5)), (8, None), *((offset + 4, offset) for offset in range(5, 10)),
    ]  # fmt: skip
    assert rows[0]["name"] == "n0" * 20
    assert rows[0]["at"].isoformat() == "2026-01-31T12:00:00+00:00"
    aside = exported(tmp_path / "out", below="_bad_records")
    assert [as_sample(row) for row in aside] == bad
    assert [(row["offset"], row["topic"], row["reason"]) for row in aside] == [
        (5, small, 'field number is the string "one" instead of an integer of 64 bits'),
        (6, small, "the value is not JSON: Expecting value at character 0"),
        (7, small, "the value is not UTF-8 at byte 0"),
    ]
    again = export(
        spark, topic=small, output=str(tmp_path / "out"), options=options(tiered_site),
        decoding=decoding_of("json", "number BIGINT, name STRING, at TIMESTAMP"),
    )  # fmt: skip
    assert (again.rows, again.commits) == (0, [])


# --- interruptions ---


def test_an_export_stopped_after_any_step_resumes_exactly_once(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    """Each round continues from the state that the previous one left, with more records."""
    records: list[Sample] = []
    output = tmp_path / "out"
    for step in (*STEPS, "committed"):
        more = json_samples(20, start=len(records), step_ms=7_200_000)
        fill(tiered_site, small, more)
        records += more
        stop_after(started(spark, tiered_site, small, output, max_records_per_batch=15), step)
        seen = numbered(exported(output))
        assert len(seen) == len(set(seen))
        assert (output / "_SUCCESS").exists() == (step == "complete")
    done = export(spark, topic=small, output=str(output), options=options(tiered_site), max_records_per_batch=15)
    rows = exported(output)
    assert numbered(rows) == [(0, offset) for offset in range(len(records))]
    assert [as_sample(row) for row in rows] == records
    assert done.is_complete
    assert done.finished == done.commits[0] - 1, "the summary names the earlier commit, even if more follow"
    commits = sorted(path.name for path in (output / "_kbroker_export").glob("*.json"))
    assert commits == [f"{number:020d}.json" for number in range(len(commits))]
    assert not (output / "_kbroker_staging").exists()


def test_an_export_resumes_after_its_process_was_killed(
    spark: SparkSession, tiered_site: Site, topic: tuple[str, list[list[Sample]]], tmp_path: Path
) -> None:
    name, records = topic
    output = tmp_path / "out"
    command = [sys.executable, "-m", "kbroker", "spark", "export", "-t", name, "-o", str(output), *flags(tiered_site)]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *SMALL_JVM], stdout=file, stderr=file, start_new_session=True
        )  # fmt: skip
    try:
        staging = output / "_kbroker_staging"
        until(lambda: process.poll() is not None or has(staging, "*/data/**/*.parquet"), patience_s=120)
        assert process.poll() is None, log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not exported(output)
    assert not (output / "_SUCCESS").exists()
    export(spark, topic=name, output=str(output), options=options(tiered_site))
    assert [as_sample(row) for row in exported(output)] == [each for partition in records for each in partition]
    assert not (output / "_kbroker_staging").exists()


def test_an_interrupted_follow_prints_its_summary(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    """Ctrl-C arrives in the middle of a batch, during a call of Spark."""
    fill(tiered_site, small, json_samples(10))
    output = tmp_path / "out"
    command = [sys.executable, "-m", "kbroker", "spark", "export", "-t", small, "-o", str(output), *flags(tiered_site)]
    process = subprocess.Popen(
        [*command, *SMALL_JVM, "--follow", "--poll-ms", "100", "--format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or (output / "_SUCCESS").exists(), patience_s=120)
        fill(tiered_site, small, json_samples(10, start=10))
        staging = output / "_kbroker_staging"
        until(lambda: process.poll() is not None or has(staging, "*1-*/data/**"), patience_s=60)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (130, "")
    *steps, summary = map(json.loads, out.splitlines())
    assert [each["kind"] for each in steps] == ["committed", "complete"]
    assert (summary["rows"], summary["commits"], summary["is_complete"]) == (10, [0], False)
    export(spark, topic=small, output=str(output), options=options(tiered_site))
    assert numbered(exported(output)) == [(0, offset) for offset in range(20)]


def test_of_two_concurrent_exports_one_fails(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    records = json_samples(10)
    fill(tiered_site, small, records)
    slow = started(spark, tiered_site, small, tmp_path / "out").steps()
    while next(slow).name != "written":
        pass
    export(spark, topic=small, output=str(tmp_path / "out"), options=options(tiered_site))
    with pytest.raises(ExportConflict, match="another export has committed this batch"):
        list(slow)
    export(spark, topic=small, output=str(tmp_path / "out"), options=options(tiered_site))
    assert [as_sample(row) for row in exported(tmp_path / "out")] == records
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_a_failure_to_stage_names_the_export_that_committed_first(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    fill(tiered_site, small, json_samples(3))
    slow = started(spark, tiered_site, small, tmp_path / "out").steps()
    while next(slow).name != "opened":
        pass
    export(spark, topic=small, output=str(tmp_path / "out"), options=options(tiered_site))
    (tmp_path / "out" / "_kbroker_staging").touch()  # no file can be created below it
    with pytest.raises(ExportConflict, match="another export has committed this batch"):
        list(slow)


def test_an_export_is_not_complete_while_another_one_renames_files(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    fill(tiered_site, small, json_samples(10))
    slow = started(spark, tiered_site, small, output).steps()
    while next(slow).name != "swept":
        pass
    fill(tiered_site, small, json_samples(10, start=10, step_ms=DAY_MS))
    stop_after(started(spark, tiered_site, small, output), "renaming")
    with pytest.raises(ExportConflict, match="another export has committed this batch"):
        list(slow)
    assert not (output / "_SUCCESS").exists()
    assert len(exported(output)) == 11


def test_two_exports_may_rename_the_files_of_one_batch(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:  # fmt: skip
    records = json_samples(5, step_ms=DAY_MS)
    fill(tiered_site, small, records)
    slow = started(spark, tiered_site, small, tmp_path / "out").steps()
    while next(slow).name != "renaming":
        pass
    export(spark, topic=small, output=str(tmp_path / "out"), options=options(tiered_site))
    assert [step.name for step in slow] == ["renamed", "swept", "complete"]
    assert [as_sample(row) for row in exported(tmp_path / "out")] == records


def test_a_committed_batch_is_completed_after_its_topic_was_deleted(
    spark: SparkSession, tiered_site: Site, new_topic_name: Callable[[str], str], tmp_path: Path
) -> None:
    name, records = new_topic_name("short"), json_samples(5, step_ms=DAY_MS)
    tiered_site.create(name, {"retention.ms": "-1"})
    fill(tiered_site, name, records)
    stop_after(started(spark, tiered_site, name, tmp_path / "out"), "committed")
    tiered_site.delete_topic(name)
    Sites([tiered_site]).expect(lambda site: name in topics(site), False)
    with pytest.raises(UnknownTopic):
        export(spark, topic=name, output=str(tmp_path / "out"), options=options(tiered_site))
    assert [as_sample(row) for row in exported(tmp_path / "out")] == records
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_commit_is_created_by_a_link_and_replaces_nothing(
    spark: SparkSession, tiered_site: Site, small: str, tmp_path: Path
) -> None:
    """Hadoop's rename of local files checks the name first, so two writers may both find it unused."""
    fill(tiered_site, small, json_samples(3))
    stop_after(started(spark, tiered_site, small, tmp_path / "out"), "committed")
    (commit,) = (tmp_path / "out" / "_kbroker_export").glob("*.json")
    (staged,) = (tmp_path / "out" / "_kbroker_staging").glob(f"*/{commit.name}")
    assert commit.samefile(staged)


# --- bad input ---


def test_a_damaged_object_fails_the_export_without_a_commit(
    spark: SparkSession, tiered_site: Site, topic: tuple[str, list[list[Sample]]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name, records = topic
    path = min(tiered_site.tier_directory.glob(f"{name}-*/1/*.log"))
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[200] ^= 1
    path.write_bytes(damaged)
    try:
        with pytest.raises(PySparkException, match=f"{name}-1 at offset 0 in object"):
            export(spark, topic=name, output=str(tmp_path / "out"), options=options(tiered_site))
        assert main(["spark", "export", "-t", name, "-o", str(tmp_path / "out"), *flags(tiered_site)]) == 1
    finally:
        path.write_bytes(sound)
    said = capsys.readouterr().err
    assert f"kbroker spark: {name}-1 at offset 0 in object {path.relative_to(tiered_site.tier_directory)}" in said
    assert "Remedy: " in said
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert not (tmp_path / "out" / "_kbroker_export").exists()
    assert exported(tmp_path / "out") == []
    export(spark, topic=name, output=str(tmp_path / "out"), options=options(tiered_site))
    assert [as_sample(row) for row in exported(tmp_path / "out")] == [each for part in records for each in part]


def test_a_directory_with_other_contents_is_refused(
    spark: SparkSession, tiered_site: Site, small: str, new_topic_name: Callable[[str], str], tmp_path: Path
) -> None:
    fill(tiered_site, small, json_samples(3))
    output = tmp_path / "out"

    def run(name: str = small, into: Path = output, **more: Any) -> None:
        export(spark, topic=name, output=str(into), options=options(tiered_site), **more)

    run()
    decoding = decoding_of("json", "number BIGINT")
    with pytest.raises(ExportConflict, match=r"were made with (decode|allows_unknown_fields)"):
        run(decoding=decoding)
    with pytest.raises(UnknownTopic, match=r"nowhere: there is no such topic. Remedy: "):
        run("nowhere", tmp_path / "nothing")
    with pytest.raises(UnknownTopic, match=f"{small},{small}: there is no such topic"):
        run(f"{small},{small}", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    other = new_topic_name("other")
    tiered_site.create(other, {})
    with pytest.raises(ExportConflict, match=f"an export of the topic '{small}'"):
        run(other)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "notes.txt").write_text("mine")
    with pytest.raises(ExportConflict, match=r"is not empty and is not an export: it contains notes\.txt"):
        run(into=strange)
    with pytest.raises(InvalidOption, match=r"out\{1\} contains \{, which Spark interprets as a pattern.* Remedy: "):
        run(into=tmp_path / "out{1}")
    for schema in ("number BIGGINT", "{", '{"type": "struct"}', "offset BIGINT"):
        with pytest.raises(InvalidOption, match="Remedy: "):
            run(into=tmp_path / "schema", decoding=decoding_of("json", schema))
    file = next(output.glob("date=*/partition=0/*.parquet"))
    shutil.move(file, tmp_path / "kept.parquet")
    with pytest.raises(ExportConflict, match="a file of batch 0 is missing"):
        run()
    shutil.move(tmp_path / "kept.parquet", file)
    tiered_site.delete_topic(small)
    Sites([tiered_site]).expect(lambda site: small in topics(site), False)
    tiered_site.create(small, TIERED)
    with pytest.raises(ExportConflict, match="created again since the last export"):
        run()
    assert len(exported(output)) == 3


def test_a_field_named_like_a_column_needs_a_struct() -> None:
    decoding = decoding_of("json", StructType().add("Offset", "long"))
    with pytest.raises(InvalidOption, match="the schema's field 'Offset' has the name of another column"):
        identity_schema(decoding, None)
    assert identity_schema(decoding, "value")["fields"][-1]["type"] == decoding.schema
