"""Resolves the bounds of a topic's partitions once on the driver, and reads offset ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kbroker.spark.errors import unknown_topic
from kbroker.spark.jobs.export_log import Range
from kbroker.spark.loading import load
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.planning import Planner
from kbroker.spark.positions import Edge
from kbroker.spark.schema import ALL_COLUMNS
from wire.types import ZERO_UUID, uuid_to_text


class Bounds(NamedTuple):
    """The offsets of one topic for a job.

    Shape  topic_id is None if the broker is too old to have one; starts and ends are resolved from the options, by
           partition; log_starts are the log start offsets; is_up_to_latest: the ends are those of the partitions
    Units  ends are exclusive
    """

    topic_id: str | None
    starts: dict[int, int]
    ends: dict[int, int]
    log_starts: dict[int, int]
    is_up_to_latest: bool


def find_bounds(options: Mapping[str, str], topic: str, *, from_earliest: bool = False) -> Bounds:
    """Resolve the bounds. `options` are those of `format("kbroker")` without the subscription; `from_earliest` ignores
    their starting position. Errors: KbrokerSourceError.
    """
    asked = SourceOptions.parse({**options, "subscribe": topic}).for_batch()
    if asked.subscription != Subscription(topics=(topic,)):  # several names, or spaces: not a topic's name
        raise unknown_topic(topic)
    if from_earliest:
        asked = replace(asked, starting=Edge.EARLIEST)
    with closing(Planner(asked)) as planner:
        found = planner.batch_range()
    topic_id = found.extent.ids[topic]
    return Bounds(
        None if topic_id == ZERO_UUID else uuid_to_text(topic_id),
        {partition: offset for (_, partition), offset in found.start.items()},
        {partition: offset for (_, partition), offset in found.end.items()},
        {partition: each.log_start_offset for (_, partition), each in found.extent.bounds.items()},
        asked.ending is Edge.LATEST,
    )


def read_ranges(
    spark: SparkSession, topic: str, options: Mapping[str, str], ranges: Mapping[int, Range]
) -> DataFrame:  # fmt: skip
    """The records of exactly these offsets, with headers; positions in `options` are ignored."""
    wanted = {partition: each for partition, each in ranges.items() if each.end > each.start}
    if not wanted:
        return spark.createDataFrame([], ALL_COLUMNS)
    own = {
        "assign": json.dumps({topic: sorted(wanted)}),
        "startingOffsets": json.dumps({topic: {str(at): each.start for at, each in wanted.items()}}),
        "endingOffsets": json.dumps({topic: {str(at): each.end for at, each in wanted.items()}}),
        "includeHeaders": "true",
    }
    return load(spark, {**without_positions(options), **own})


def without_positions(options: Mapping[str, str]) -> dict[str, str]:
    """The options that do not say where reading begins or ends."""
    return {name: text for name, text in options.items() if not name.lower().startswith(("starting", "ending"))}
