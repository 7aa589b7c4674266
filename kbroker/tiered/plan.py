"""What of a partition goes to the tier and what leaves it: decisions alone, from what the log and the metadata say.

Lineage. After an unclean election the tier may hold segments of a history that did not happen, and two leaders may have
copied overlapping ranges. The log's leader epochs are the history that did: a segment counts when its epochs, from the
log's first one on, are epochs of the log with the same borders. Others are never counted against retention, never
served and never in anybody's way; they go when the log's start has passed them.

Order. The scan goes through the epochs from the oldest on, and in each by offset. It ends at the first segment that is
in the lineage and has to stay: what is behind it is newer. Only what lies below the log's start goes all the same.

Source  RemoteLogManager of Apache Kafka 4.3.1 (candidateLogSegments, isRemoteSegmentWithinLeaderEpochs,
        findHighestRemoteOffset, findLogStartOffset, cleanupExpiredRemoteLogSegments)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from kbroker.tiered.lifecycle import ranges
from kbroker.tiered.partition import NOTHING

Epochs: TypeAlias = Sequence[tuple[int, int]]
"""(leader_epoch, start_offset), both ascending."""

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class LocalSegment(Protocol):
    """What the decisions see of a segment of the local log."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


Local = TypeVar("Local", bound=LocalSegment)


# --- lineage ----------------------------------------------------------------------------------------------------------


def without_empty_epochs(entries: Epochs) -> list[tuple[int, int]]:
    """The epochs that have records: not those at whose start the next one begins."""
    return [entry for at, entry in enumerate(entries) if at + 1 == len(entries) or entries[at + 1][1] != entry[1]]


class Lineage:
    """The history of a log, as its leader epochs tell it."""

    __slots__ = ("_places", "entries", "log_end_offset")

    def __init__(self, leader_epochs: Epochs, *, log_end_offset: int) -> None:
        self.entries = without_empty_epochs(leader_epochs)
        self.log_end_offset = log_end_offset
        self._places = {epoch: place for place, (epoch, _) in enumerate(self.entries)}

    def __contains__(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether a remote segment is part of this history.

        Its epochs below the log's first one do not matter: of overlapping segments the head of one may have been
        deleted with the other.
        """
        entries, places = self.entries, self._places
        if not entries or segment.end_offset >= self.log_end_offset:
            return False
        oldest = entries[0][0]
        known = [entry for entry in without_empty_epochs(segment.segment_leader_epochs) if entry[0] >= oldest]
        if not known or any(epoch not in places for epoch, _ in known):
            return False
        first_epoch, first_start = known[0]
        if first_epoch != oldest and first_start < entries[places[first_epoch]][1]:
            return False
        for (epoch, _), following in pairwise(known):
            # An epoch that is followed in the segment is followed in the log, or the next one would not be known.
            if entries[places[epoch] + 1] != following:
                return False
        behind = places[known[-1][0]] + 1
        return behind == len(entries) or segment.end_offset < entries[behind][1]

    def shared_starts(self, segment: RemoteLogSegmentMetadata) -> Iterator[int]:
        """Where those pieces of a segment begin that are part of this history: what an epoch wrote at an offset, it
        wrote once.
        """
        for epoch, start, end in ranges(segment):
            place = self._places.get(epoch)
            if place is not None:
                is_last = place + 1 == len(self.entries)
                epoch_end = self.log_end_offset if is_last else self.entries[place + 1][1]
                first = max(start, self.entries[place][1])
                if first <= end and first < epoch_end:
                    yield first

    def place_of(self, segment: RemoteLogSegmentMetadata) -> int | None:
        """Where the scan meets a segment first: the number of the oldest of its epochs that the log knows."""
        return min(
            (self._places[epoch] for epoch, _ in segment.segment_leader_epochs if epoch in self._places), default=None
        )


def clipped_epochs(leader_epochs: Epochs, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """The epochs that have records in [start_offset, end_offset), the first of them from start_offset on."""
    found: list[tuple[int, int]] = []
    for epoch, start in leader_epochs:
        if start >= end_offset:
            break
        if start <= start_offset:
            found = [(epoch, start_offset)]
        else:
            found.append((epoch, start))
    return tuple(found)


def highest_remote_offset(
    highest_for_epoch: Callable[[int], int | None], leader_epochs: Epochs, *, log_end_offset: int
) -> int:
    """The last offset of this history that the tier holds, NOTHING if none: epochs are asked from the newest on, and
    what a segment has beyond the end of an epoch was never part of the log.
    """
    end_offset = log_end_offset
    for epoch, start_offset in reversed(leader_epochs):
        highest = highest_for_epoch(epoch)
        if highest is not None:
            return min(highest, end_offset - 1)
        end_offset = start_offset
    return NOTHING


def lowest_remote_offset(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> int | None:
    """The first offset of this history that can be read from the tier, be it from a segment that goes on with another
    one, or begins with it; None where there is none.
    """
    found: list[int] = []
    for one in segments:
        if one.state is FINISHED:
            found += lineage.shared_starts(one)
    return min(found, default=None)


def covered_end(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, *, start: int) -> int:
    """The last offset such that the tier has this history from `start` to it without a hole; start - 1 if not even
    `start`.
    """
    reached = start
    for one in sorted((one for one in segments if one.state is FINISHED), key=lambda one: one.start_offset):
        if one.start_offset > reached:
            break
        if one.end_offset >= reached and one in lineage:
            reached = one.end_offset + 1
    return reached - 1


# --- copying ----------------------------------------------------------------------------------------------------------


class CopyCandidate(NamedTuple, Generic[Local]):
    """A closed segment that is to be copied, and where the next one begins."""

    segment: Local
    next_offset: int


def plan_copies(segments: Sequence[Local], *, from_offset: int, last_stable_offset: int) -> list[CopyCandidate[Local]]:
    """The closed segments, in order, that hold anything from `from_offset` on and nothing undecided; the active one is
    last in `segments`.

    Unlike a search by base offset this never leaves out the segment that was rolled last.
    """
    return [
        CopyCandidate(segment, following.base_offset)
        for segment, following in pairwise(segments)
        if from_offset < following.base_offset <= last_stable_offset and segment.size
    ]


class Lag(NamedTuple):
    """What is closed and not in the tier yet."""

    bytes: int
    segments: int


def copy_lag(segments: Sequence[LocalSegment], *, from_offset: int) -> Lag:
    """What copying is behind, from what is there now: the closed segments that hold anything from `from_offset` on,
    decided or not; the active segment, last in `segments`, does not count.
    """
    waiting = [segment for segment, following in pairwise(segments) if following.base_offset > from_offset]
    return Lag(sum(segment.size for segment in waiting), len(waiting))


def local_only_bytes(segments: Sequence[LocalSegment], *, highest_remote: int) -> int:
    """Bytes of the local segments of which nothing is in the tier; they count against the whole log's retention."""
    return sum(segment.size for segment in segments if segment.base_offset > highest_remote)


# --- expiry -----------------------------------------------------------------------------------------------------------


class ExpiryReason(StrEnum):
    """Why a remote segment goes, as operators are told."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"
    EPOCHS = "its leader epochs lie before the log's"
    ABANDONED = "its copy was not finished"
    AGAIN = "its deletion was not finished"


class DoomedSegment(NamedTuple):
    """A remote segment that goes."""

    metadata: RemoteLogSegmentMetadata
    reason: ExpiryReason


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What leaves the tier now, in this order, once log_start_offset is at least what is given here.

    Units   size_bytes is what the tier holds of the partition: copies that are finished and what is being deleted,
            each once; retained_bytes are those that count against retention; offsets count records
    Shape   log_start_offset is None where it stays
    """

    log_start_offset: int | None = None
    doomed: tuple[DoomedSegment, ...] = ()
    size_bytes: int = 0
    segments: int = 0
    retained_bytes: int = 0

    @property
    def lag(self) -> Lag:
        """What is to be deleted and still there."""
        return Lag(sum(one.metadata.segment_size_in_bytes for one in self.doomed), len(self.doomed))


def plan_expiry(
    segments: Iterable[RemoteLogSegmentMetadata],
    lineage: Lineage,
    *,
    log_start_offset: int,
    local_bytes: int,
    retention_ms: int,
    retention_bytes: int,
    timestamp_ms: int,
    copying: Container[RemoteLogSegmentId],
    is_abandoned: Callable[[RemoteLogSegmentMetadata], bool],
) -> ExpiryPlan:
    """Decide which remote segments of a partition go.

    `local_bytes` are in the local log alone; `copying` are under way now; `is_abandoned` says of a copy that is not
    and was never finished that nobody will finish it. -1 in a retention is no limit.
    """
    known = {one.remote_log_segment_id: one for one in segments}.values()
    held = [one for one in known if one.state in (FINISHED, DELETE_STARTED)]
    doomed = [
        DoomedSegment(one, ExpiryReason.AGAIN)
        for one in known
        if one.state is DELETE_STARTED and one.remote_log_segment_id not in copying
    ]
    doomed += [
        DoomedSegment(one, ExpiryReason.ABANDONED)
        for one in known
        if one.state is STARTED and one.remote_log_segment_id not in copying and is_abandoned(one)
    ]
    new_start = log_start_offset
    # What is being deleted already is as good as gone: it neither counts nor makes up for what is too much.
    counted = sum(one.segment_size_in_bytes for one in known if one.state is FINISHED and one in lineage)
    retained = local_bytes + counted
    excess = retained - retention_bytes if retention_bytes >= 0 else 0
    is_over = False  # but what lies below the log's start goes whatever it overlaps with
    for one in _in_scan_order(known, lineage):
        if one.state is not FINISHED:
            is_over = is_over or one.remote_log_segment_id in copying
            continue
        is_below = one.end_offset < log_start_offset and all(
            epoch <= lineage.entries[0][0] for epoch, _ in one.segment_leader_epochs
        )
        is_valid = (is_below or not is_over) and one in lineage
        if is_below:
            reason = ExpiryReason.LOG_START
        elif not is_valid:
            continue
        elif retention_ms >= 0 and timestamp_ms - one.max_timestamp_ms > retention_ms:
            reason = ExpiryReason.TIME
        elif excess > 0 and one.segment_size_in_bytes <= excess:
            reason = ExpiryReason.SIZE
        else:
            is_over = True
            continue
        doomed.append(DoomedSegment(one, reason))
        if is_valid:
            excess -= one.segment_size_in_bytes
        if not is_below:
            new_start = max(new_start, one.end_offset + 1)
    doomed += _before_all_epochs(known, lineage, copying, log_start_offset=log_start_offset)
    return ExpiryPlan(
        log_start_offset=new_start if new_start > log_start_offset else None,
        doomed=tuple(doomed),
        size_bytes=sum(one.segment_size_in_bytes for one in held),
        segments=len(held),
        retained_bytes=retained,
    )


def _in_scan_order(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> list[RemoteLogSegmentMetadata]:
    placed = [(place, one) for one in segments if (place := lineage.place_of(one)) is not None]
    placed.sort(key=lambda pair: (pair[0], pair[1].start_offset, pair[1].end_offset))
    return [one for _, one in placed]


def _before_all_epochs(
    segments: Iterable[RemoteLogSegmentMetadata],
    lineage: Lineage,
    copying: Container[RemoteLogSegmentId],
    *,
    log_start_offset: int,
) -> list[DoomedSegment]:
    """Segments below the log's start, all of whose epochs are older than the log's first one.

    No read leads to those above it either. But they may be all that is left of a log whose files were lost, and which
    began anew at 0: they stay until its start has passed them, where Kafka deletes them at once.
    """
    if not lineage.entries:
        return []
    oldest = lineage.entries[0][0]
    return [
        DoomedSegment(one, ExpiryReason.EPOCHS)
        for one in segments
        if one.state is FINISHED
        and one.end_offset < log_start_offset
        and one.remote_log_segment_id not in copying
        and all(epoch < oldest for epoch, _ in one.segment_leader_epochs)
    ]
