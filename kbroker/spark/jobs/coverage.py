"""Checks that the segments of a partition in the tier are one history without gaps. Pure decisions.

The leader epochs of the log define its history. The finished segments of that history must cover everything from the
log start offset to the local log start offset; offsets after that may not have been copied yet. Overlapping segments,
and segments of another history, do no harm: several leaders may copy the same offsets, and segments left by an unclean
election are deleted when the log start offset passes them. So these are notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata
from kbroker.tiered.catalogue import id_text
from kbroker.tiered.scrubbing import Finding


def check_coverage(state: PartitionState, local_log_start_offset: int | None) -> Iterator[Finding]:
    """Gaps, overlaps and segments of another history in one partition.

    `local_log_start_offset` is None without a broker: then any gap between two segments is a finding.
    """
    subject = f"{state.id.topic}-{state.id.partition}"
    usable = usable_segments(state)
    used = {id(each) for each in usable}
    for segment in state.segments:
        if segment.state is FINISHED and id(segment) not in used:
            text = "belongs to another history: its leader epochs are not those of the log"
            yield Finding("other-lineage", text, segment, is_note=True)
    at = state.log_start_offset
    previous: RemoteLogSegmentMetadata | None = None
    for segment in usable:
        if segment.end_offset < state.log_start_offset:
            yield Finding("expired", "is below the log start offset and will be deleted", segment, is_note=True)
            continue
        if segment.start_offset > at:
            yield from _gap(subject, at, segment.start_offset, local_log_start_offset, before=id_text(segment))
        elif previous is not None and segment.start_offset < at:
            text = f"overlaps {id_text(previous)}: both have the offsets {segment.start_offset} to "
            yield Finding("overlap", f"{text}{min(at - 1, segment.end_offset)}", segment, is_note=True)
        if segment.end_offset >= at:
            at, previous = segment.end_offset + 1, segment
    if local_log_start_offset is not None and at < local_log_start_offset:
        yield from _gap(subject, at, local_log_start_offset, local_log_start_offset, before="the local log")


def _gap(subject: str, start: int, end: int, local_start: int | None, *, before: str) -> Iterator[Finding]:
    lost_to = end if local_start is None else min(end, local_start)
    if lost_to > start:
        text = f"the offsets {start} to {lost_to - 1}, before {before}, are in no segment of the log's history"
        yield Finding("gap", f"{text}: no other copy is known", name=subject)
    if end > max(start, lost_to):
        text = f"the offsets {max(start, lost_to)} to {end - 1}, before {before}, are only in the local log"
        yield Finding("local-only", text, name=subject, is_note=True)
