"""Exclusive creation on Hadoop file systems whose rename does not fail if the name exists, such as object stores.

ViewFs, which is part of Hadoop, represents them: here it maps to a local directory, and its rename checks the name and
then renames.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat.spark.jobs import TIERED, as_sample, exported, fill, json_samples, options
from compat.tiered.site import Site
from kbroker.spark.errors import ExportConflict
from kbroker.spark.jobs.export import Export, export
from kbroker.spark.jobs.files import CLAIM_S, Claimed, HadoopDirectory


@pytest.fixture
def mounted(spark: SparkSession, tmp_path: Path) -> str:
    """The URI of `tmp_path` on a file system whose renames are not exclusive."""
    table = f"at{time.time_ns()}"
    spark._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{table}.link./lake", tmp_path.as_uri())
    return f"viewfs://{table}/lake"


def claim(directory: Path, number: int, *, age_s: float) -> Path:
    """Create the claim of another writer, of this age."""
    path = directory / "_kbroker_staging" / f"{number:020d}-another" / f"{number:020d}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_writer_that_finds_another_claim_withdraws_its_own(spark: SparkSession, mounted: str, tmp_path: Path) -> None:
    directory = HadoopDirectory(spark, mounted)
    claim(tmp_path, 0, age_s=CLAIM_S / 2)
    name = f"{0:020d}.json"
    staged = f"_kbroker_staging/own/{name}"
    with pytest.raises(Claimed, match=f"is not renamed: another writer has staged {0:020d}-another/{name}"):
        directory.create(name, "mine", staged=staged)
    assert not (tmp_path / staged).exists()
    assert not (tmp_path / name).exists()
    directory.create("1.json", "mine", staged="_kbroker_staging/own/1.json")  # the claim is for another file
    assert (tmp_path / "1.json").read_text() == "mine"


def test_an_export_yields_to_another_commit_unless_it_is_stale(
    spark: SparkSession, tiered_site: Site, new_topic_name: Callable[[str], str], mounted: str, tmp_path: Path
) -> None:
    topic, records = new_topic_name("claimed"), json_samples(5)
    tiered_site.create(topic, TIERED)
    fill(tiered_site, topic, records)
    job = Export(
        spark, topic=topic, output=f"{mounted}/out", options=options(tiered_site), decoding=None, into=None,
        max_records_per_batch=None,
    )  # fmt: skip
    steps = job.steps()
    while next(steps).name != "opened":
        pass
    other = claim(tmp_path / "out", 0, age_s=0)
    with pytest.raises(ExportConflict, match=r"about to commit this batch.* start again in a minute"):
        list(steps)
    assert list((tmp_path / "out" / "_kbroker_export").iterdir()) == []
    os.utime(other, (time.time() - 2 * CLAIM_S,) * 2)
    done = export(spark, topic=topic, output=f"{mounted}/out", options=options(tiered_site))
    assert (done.commits, done.is_complete) == ([0], True)
    assert [as_sample(row) for row in exported(tmp_path / "out")] == records
    assert not (tmp_path / "out" / "_kbroker_staging").exists()
