"""What a replay remembers on the cluster that it writes to: offsets of a consumer group, with a text each.

Before the first record is written, a group named by the job commits for each partition of the target where its log
ends (the base) and, as the text beside it, what is to be written. Whoever starts the job again learns from it which
ranges of the source are meant, whatever the source has got since, and how many records are there: the log's end less
the base. Nothing marks the records themselves, and no file is needed.

The text has to fit into `offset.metadata.max.bytes`, so the ranges of the source are spread over the partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbroker.spark.jobs.errors import ReplayConflict
from kbroker.spark.jobs.export_log import Range

VERSION: Final = 1
MAX_METADATA_BYTES: Final = 4096
AGAIN: Final = "choose another --job-id to replay anew"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is written where.

    Shape  source says whose records they are, in words; ranges by the source's partitions; bases by the target's;
           is_by_key: partitions are chosen by keys instead of being the same
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

    def metadata(self) -> dict[int, str]:
        """The text for each partition of the target. Errors: ReplayConflict where the ranges are too many."""
        count = len(self.bases)
        texts = {}
        for place, partition in enumerate(sorted(self.bases)):
            own = {str(at): list(each) for at, each in sorted(self.ranges.items()) if at % count == place}
            told: dict[str, Any] = {
                "replay": VERSION, "target_id": self.target_id, "source": self.source, "by_key": self.is_by_key,
                "done": self.is_done, "ranges": own,
            }  # fmt: skip
            texts[partition] = json.dumps(told, separators=(",", ":"))
            if len(texts[partition].encode()) > MAX_METADATA_BYTES:
                raise ReplayConflict(
                    f"the ranges of {len(self.ranges)} partitions do not fit into the offsets of {count} partitions",
                    remedy="replay some partitions at a time, each with a --job-id of its own",
                    topic=self.target,
                )
        return texts


def parse_plan(job_id: str, target: str, committed: Mapping[int, tuple[int, str]]) -> ReplayPlan:
    """The plan in what a group committed: by partition an offset and a text.

    Errors  ReplayConflict where another program uses the group
    """
    ranges: dict[int, Range] = {}
    headings = []
    for partition, (_, text) in sorted(committed.items()):
        try:
            told = json.loads(text)
            if told["replay"] != VERSION:
                raise ValueError(told["replay"])
            headings.append((told["target_id"], told["source"], told["by_key"], told["done"]))
            ranges |= {int(at): Range(*each) for at, each in told["ranges"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ReplayConflict(
                f"the group {job_id!r} has committed an offset that no replay did",
                remedy="choose another --job-id: this one is the name of a consumer group",
                topic=target,
                partition=partition,
            ) from error
    if len(set(headings)) != 1:
        raise ReplayConflict(f"the offsets of the group {job_id!r} are not of one replay", remedy=AGAIN, topic=target)
    target_id, source, is_by_key, is_done = headings[0]
    bases = {partition: offset for partition, (offset, _) in committed.items()}
    return ReplayPlan(job_id, target, target_id, source, bool(is_by_key), ranges, bases, bool(is_done))


def refuse_another(known: ReplayPlan, *, source: str, is_by_key: bool, target_id: str, partitions: set[int]) -> None:
    """See that a plan is that of this very replay. Errors: ReplayConflict."""

    def conflict(what: str) -> ReplayConflict:
        return ReplayConflict(what, remedy=AGAIN, topic=known.target)

    if known.target_id != target_id:
        raise conflict(
            f"the target was created again since the replay {known.job_id!r} began: its id was {known.target_id}, now "
            f"{target_id}"
        )
    if known.source != source:
        raise conflict(f"the replay {known.job_id!r} is one of {known.source}, not of {source}")
    if known.is_by_key != is_by_key:
        how = "by key" if known.is_by_key else "to the same partitions"
        raise conflict(f"the replay {known.job_id!r} was begun {how}")
    if set(known.bases) != partitions:
        raise conflict(
            f"the target had {len(known.bases)} partitions when the replay {known.job_id!r} began, and has "
            f"{len(partitions)} now"
        )
