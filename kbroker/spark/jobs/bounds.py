"""Where a topic's partitions begin and end, asked once on the driver, before a batch is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kbroker.spark.options import SourceOptions
from kbroker.spark.planning import Planner
from kbroker.spark.positions import Edge
from wire.types import ZERO_UUID, uuid_to_text


class Bounds(NamedTuple):
    """The offsets of one topic that a job is about.

    Shape  topic_id is None where the broker is too old to tell one; starts and ends are what the options say, by
           partition; log_starts where the partitions begin; is_up_to_latest: the ends are those of the partitions
    Units  ends are exclusive
    """

    topic_id: str | None
    starts: dict[int, int]
    ends: dict[int, int]
    log_starts: dict[int, int]
    is_up_to_latest: bool


def find_bounds(options: Mapping[str, str], topic: str, *, from_earliest: bool = False) -> Bounds:
    """Ask. `options` are those of `format("kbroker")` without the subscription; `from_earliest` passes over what they
    say of where to begin. Errors: KbrokerSourceError.
    """
    asked = SourceOptions.parse({**options, "subscribe": topic}).for_batch()
    if from_earliest:
        asked = replace(asked, starting=Edge.EARLIEST)
    with Planner(asked) as planner:
        found = planner.batch_range()
    topic_id = found.extent.ids[topic]
    return Bounds(
        None if topic_id == ZERO_UUID else uuid_to_text(topic_id),
        {partition: offset for (_, partition), offset in found.start.items()},
        {partition: offset for (_, partition), offset in found.end.items()},
        {partition: each.log_start_offset for (_, partition), each in found.extent.bounds.items()},
        asked.ending is Edge.LATEST,
    )
