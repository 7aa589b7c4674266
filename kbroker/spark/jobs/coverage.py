"""Whether the segments of a partition in the tier are one history without a hole: decisions alone.

The leader epochs of the log say which history happened. Finished segments that are part of it have to cover everything
from the log's start up to where the local log begins; behind that a hole is only what has not been copied. Segments
that overlap, or that belong to a history that did not happen, are in nobody's way: several leaders may have copied the
same, and what an unclean election left goes when the log's start has passed it. So these are notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.catalogue import FINISHED, id_text
from kbroker.tiered.scrubbing import Finding


def check_coverage(state: PartitionState, local_log_start_offset: int | None) -> Iterator[Finding]:
    """Gaps, overlaps and strangers of one partition.

    `local_log_start_offset` is None where no broker was asked: then whatever lies between two segments is a gap.
    """
    subject = f"{state.id.topic}-{state.id.partition}"
    usable = usable_segments(state)
    told = {id(each) for each in usable}
    for segment in state.segments:
        if segment.state is FINISHED and id(segment) not in told:
            text = "is of a history that did not happen: its leader epochs are not those of the log"
            yield Finding("other-lineage", text, segment, is_note=True)
    at = state.log_start_offset
    previous: RemoteLogSegmentMetadata | None = None
    for segment in usable:
        if segment.end_offset < state.log_start_offset:
            yield Finding("expired", "lies below the log's start and waits for its deletion", segment, is_note=True)
            continue
        if segment.start_offset > at:
            yield from _gap(subject, at, segment.start_offset, local_log_start_offset, before=id_text(segment))
        elif previous is not None and segment.start_offset < at:
            text = f"overlaps with {id_text(previous)}: both have the offsets {segment.start_offset} to "
            yield Finding("overlap", f"{text}{min(at - 1, segment.end_offset)}", segment, is_note=True)
        if segment.end_offset >= at:
            at, previous = segment.end_offset + 1, segment
    if local_log_start_offset is not None and at < local_log_start_offset:
        yield from _gap(subject, at, local_log_start_offset, local_log_start_offset, before="the local log")


def _gap(subject: str, start: int, end: int, local_start: int | None, *, before: str) -> Iterator[Finding]:
    lost_to = end if local_start is None else min(end, local_start)
    if lost_to > start:
        text = f"the offsets {start} to {lost_to - 1}, before {before}, are in no segment of the log's history"
        yield Finding("gap", f"{text}: nobody has them", name=subject)
    if end > max(start, lost_to):
        text = f"the offsets {max(start, lost_to)} to {end - 1}, before {before}, are only in the local log"
        yield Finding("local-only", text, name=subject, is_note=True)
