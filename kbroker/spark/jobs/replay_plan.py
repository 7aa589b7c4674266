"""The state of a replay, stored on the target cluster as committed offsets with metadata of a consumer group.

Before the first record is written, a group named by the job commits for each target partition the log end offset (the
base), with the description of the replay as metadata. A later run reads from it which ranges of the source to replay,
even if the source has grown, and how many records are written already: the log end offset minus the base. The records
themselves are not marked, and no file is needed.

The metadata is limited by `offset.metadata.max.bytes`, so the source's ranges are distributed over the partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbroker.client.operations import Committed
from kbroker.spark.errors import ReplayConflict
from kbroker.spark.jobs.export_log import Range

VERSION: Final = 1
MAX_METADATA_BYTES: Final = 4096
AGAIN: Final = "choose another --job-id to start a new replay"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is written where.

    Shape  source describes the source in words; ranges by source partition; bases by target partition;
           is_by_key: keys decide the partition, instead of the source's partition
    Note   is_done: everything has been written and counted
    """

    job_id: str
    target: str
    target_id: str
    source: str
    is_by_key: bool
    ranges: Mapping[int, Range]
    bases: Mapping[int, int]
    is_done: bool = False

    def offsets(self) -> dict[int, Committed]:
        """What the group commits for each target partition. Errors: ReplayConflict if there are too many ranges."""
        count = len(self.bases)
        found = {}
        for place, (partition, base) in enumerate(sorted(self.bases.items())):
            own = {str(at): list(each) for at, each in sorted(self.ranges.items()) if at % count == place}
            header: dict[str, Any] = {
                "replay": VERSION, "target_id": self.target_id, "source": self.source, "by_key": self.is_by_key,
                "done": self.is_done, "ranges": own,
            }  # fmt: skip
            found[partition] = Committed(base, json.dumps(header, separators=(",", ":")))
            if len(found[partition].metadata.encode()) > MAX_METADATA_BYTES:
                raise ReplayConflict(
                    f"the ranges of {len(self.ranges)} partitions do not fit into the offsets of {count} partitions",
                    remedy="replay some partitions at a time, each with a --job-id of its own",
                    at=self.target,
                )
        return found


def parse_plan(job_id: str, target: str, committed: Mapping[int, Committed]) -> ReplayPlan:
    """The plan from the committed offsets of a group, by partition.

    Errors  ReplayConflict if another program uses the group
    """
    ranges: dict[int, Range] = {}
    headings = []
    for partition, each in sorted(committed.items()):
        try:
            found = json.loads(each.metadata)
            if found["replay"] != VERSION:
                raise ValueError(found["replay"])
            headings.append((found["target_id"], found["source"], found["by_key"], found["done"]))
            ranges |= {int(at): Range(*bounds) for at, bounds in found["ranges"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayConflict(
                f"the group {job_id!r} has committed an offset that is not of a replay",
                remedy="choose another --job-id: this one is the name of a consumer group",
                at=(target, partition),
            ) from error
    if len(set(headings)) != 1:
        raise ReplayConflict(
            f"the offsets of the group {job_id!r} belong to different replays", remedy=AGAIN, at=target
        )
    target_id, source, is_by_key, is_done = headings[0]
    bases = {partition: each.offset for partition, each in committed.items()}
    return ReplayPlan(job_id, target, target_id, source, bool(is_by_key), ranges, bases, bool(is_done))


def refuse_another(known: ReplayPlan, *, source: str, is_by_key: bool, target_id: str, partitions: set[int]) -> None:
    """Check that a plan belongs to this replay. Errors: ReplayConflict."""

    def conflict(what: str) -> ReplayConflict:
        return ReplayConflict(what, remedy=AGAIN, at=known.target)

    if known.target_id != target_id:
        raise conflict(
            f"the target was created again since the replay {known.job_id!r} began: its id was {known.target_id}, it "
            f"is {target_id}"
        )
    if known.source != source:
        raise conflict(f"the replay {known.job_id!r} has the source {known.source}, not {source}")
    if known.is_by_key != is_by_key:
        how = "by key" if known.is_by_key else "to the same partitions"
        raise conflict(f"the replay {known.job_id!r} was started {how}")
    if set(known.bases) != partitions:
        raise conflict(
            f"the target had {len(known.bases)} partitions when the replay {known.job_id!r} began, and has "
            f"{len(partitions)} now"
        )
