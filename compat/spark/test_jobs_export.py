"""`export`: a topic as Parquet, each record exactly once, whatever is stopped when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat.clients.samples import Sample, samples
from compat.spark.jobs import TIERED, as_sample, exported, fill, numbered, options
from compat.tiered.site import LATEST_TIERED, Site, Sites
from kbroker.spark.jobs.export import export

COUNT = 400


@pytest.fixture(scope="module")
def topic(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[tuple[str, list[list[Sample]]]]:
    """Two partitions, of which the tier has most and the broker alone the rest."""
    name = new_topic_name("export")
    tiered_site.create(name, TIERED, partitions=2)
    records = [samples(COUNT, seed=partition, null_headers=False) for partition in range(2)]
    for partition, each in enumerate(records):
        fill(tiered_site, name, each, partition=partition)
        Sites([tiered_site]).expect(
            lambda site, at=partition: site.offset(name, LATEST_TIERED, partition=at)[1] > COUNT // 3, True
        )
    yield name, records
    tiered_site.delete_topic(name)


def test_every_record_is_exported_as_it_is(
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
