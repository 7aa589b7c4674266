"""Checker K9: the local log and the tier together have every offset, the tier has only written bytes, and no orphans.

    Lz >= Ly >= Lx     log_end_offset, last_stable_offset, local_log_start_offset
    Ly >= Ry >= Rx     the tier ends below the last stable offset, and begins where the log does
    Lx <= Ry + 1       no hole between the two

A pure function of a state. It shares no code with the decisions that it judges: it finds out offset by offset whether
a segment is part of the log's history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from kbroker.storage.log import Log
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True)
class TierState:
    """One tiered partition at one moment.

    Shape  leader_epochs as in the log's checkpoint; segments are all that the metadata lists
    Note   highest_remote is None until the tier was first queried
    """

    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    highest_remote: int | None
    leader_epochs: Sequence[tuple[int, int]]
    segments: Collection[RemoteLogSegmentMetadata]

    @classmethod
    def of(
        cls,
        log: Log,
        *,
        last_stable_offset: int,
        highest_remote: int | None,
        segments: Collection[RemoteLogSegmentMetadata],
    ) -> TierState:
        """The state of a log and the segments that the metadata lists for it."""
        return cls(
            log_start_offset=log.log_start_offset,
            local_log_start_offset=log.local_log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=last_stable_offset,
            highest_remote=highest_remote,
            leader_epochs=log.leader_epochs.entries,
            segments=segments,
        )


def complaints_about(state: TierState) -> Iterator[str]:
    """The violations of K9, as sentences."""
    start, local, end = state.log_start_offset, state.local_log_start_offset, state.log_end_offset
    stable, highest = state.last_stable_offset, state.highest_remote
    if not start <= local <= end:
        yield f"log_start_offset {start} <= local_log_start_offset {local} <= log_end_offset {end} does not hold"
    if not local <= stable <= end:
        yield f"last_stable_offset {stable} is not within {local}..{end}"
    if highest is not None and highest >= stable:
        yield f"the tier has offset {highest}, which is not below last_stable_offset {stable}"
    if start < local:
        yield from _complaints_about_cover(state, start, local - 1, "which is no longer in the local log")
        if highest is not None and local > highest + 1:
            yield f"there is a hole between {highest}, the last offset of the tier, and {local}, the first local one"
    if highest is not None and start <= highest:
        yield from _complaints_about_cover(state, start, highest, "though it is said to be there")
    ids = [one.remote_log_segment_id for one in state.segments]
    if len(set(ids)) < len(ids):
        yield "a segment is listed twice"


def _complaints_about_cover(state: TierState, first: int, last: int, why: str) -> Iterator[str]:
    finished = [one for one in state.segments if one.state is FINISHED]
    for offset in range(first, last + 1):
        epoch = epoch_at(state.leader_epochs, offset)
        if not any(
            one.start_offset <= offset <= one.end_offset and epoch_at(one.segment_leader_epochs, offset) == epoch
            for one in finished
        ):
            yield f"the tier has no finished segment with offset {offset} of epoch {epoch}, {why}"
            return


def epoch_at(entries: Sequence[tuple[int, int]], offset: int) -> int:
    """The epoch in which an offset was written; -1 before the first entry."""
    return max((epoch for epoch, start in entries if start <= offset), default=-1)


def complaints_about_bytes(
    segments: Collection[RemoteLogSegmentMetadata],
    stored: Mapping[UUID, bytes],
    written: Mapping[int, bytes],
    leader_epochs: Sequence[tuple[int, int]],
) -> Iterator[str]:
    """Whether the stored bytes of the finished segments of this history are the written ones.

    Shape  stored: the bytes of segments by id; written: each batch of the log that ever was committed, by base_offset
    """
    for one in segments:
        if one.state is not FINISHED:
            continue
        data = stored.get(one.remote_log_segment_id.id)
        if data is None:
            yield f"the objects of the finished segment {one.start_offset}..{one.end_offset} are missing"
            continue
        if epoch_at(one.segment_leader_epochs, one.end_offset) != epoch_at(leader_epochs, one.end_offset):
            continue
        expected = b"".join(
            batch for base, batch in sorted(written.items()) if one.start_offset <= base <= one.end_offset
        )
        if data != expected:
            yield f"the segment {one.start_offset}..{one.end_offset} in the tier differs from what was written"


def complaints_about_objects(
    object_ids: Collection[UUID], segments: Collection[RemoteLogSegmentMetadata]
) -> Iterator[str]:
    """Orphans: objects that the metadata does not know."""
    known = {one.remote_log_segment_id.id for one in segments}
    for one in sorted(set(object_ids) - known, key=lambda one: one.int):
        yield f"object of segment {one} is an orphan"
