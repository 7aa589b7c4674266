"""Decides which segments of a partition are copied to the tier and which are deleted from it. Pure: the input is the
state of the log and the metadata.

Lineage. After an unclean leader election the tier may hold segments of a diverged history, and two leaders may have
copied overlapping ranges. The leader epochs of the log define the valid history. A segment is in the lineage if its
epochs, from the log's first one on, are epochs of the log with the same boundaries. Other segments are never served and
never count against retention. They are deleted once the log start offset has passed them.

Order. The scan goes through the epochs from the oldest on, and within an epoch by offset. It stops at the first segment
in the lineage that is retained, because all later segments are newer. Only segments below the log start offset are
deleted regardless.

Source  RemoteLogManager of Apache Kafka 4.3.1 (candidateLogSegments, isRemoteSegmentWithinLeaderEpochs,
        findHighestRemoteOffset, findLogStartOffset, cleanupExpiredRemoteLogSegments)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from kbroker.storage.retention import LocalSegment
from kbroker.tiered.api import DELETING, FINISHED, STARTED, RemoteLogSegmentId, RemoteLogSegmentMetadata
from kbroker.tiered.lifecycle import ranges
from kbroker.tiered.partition import NOTHING

Epochs: TypeAlias = Sequence[tuple[int, int]]
"""(leader_epoch, start_offset), both ascending."""


Local = TypeVar("Local", bound=LocalSegment)


# --- lineage ----------------------------------------------------------------------------------------------------------


def without_empty_epochs(entries: Epochs) -> list[tuple[int, int]]:
    """The epochs that have records: an epoch is dropped if the next one starts at the same offset."""
    return [entry for at, entry in enumerate(entries) if at + 1 == len(entries) or entries[at + 1][1] != entry[1]]


class Lineage:
    """The history of a log, defined by its leader epochs."""

    __slots__ = ("_places", "entries", "log_end_offset")

    def __init__(self, leader_epochs: Epochs, *, log_end_offset: int) -> None:
        self.entries = without_empty_epochs(leader_epochs)
        self.log_end_offset = log_end_offset
        self._places = {epoch: place for place, (epoch, _) in enumerate(self.entries)}

    def __contains__(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether a remote segment is part of this history.

        Epochs of the segment that are older than the log's first one are ignored: retention may have deleted that part
        of the history together with an overlapping segment.
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
            # The epoch has a successor in the segment, so it has one in the log, or the successor would be unknown.
            if entries[places[epoch] + 1] != following:
                return False
        behind = places[known[-1][0]] + 1
        return behind == len(entries) or segment.end_offset < entries[behind][1]

    def shared_starts(self, segment: RemoteLogSegmentMetadata) -> Iterator[int]:
        """The start offsets of the parts of a segment that belong to this history. An epoch writes an offset only
        once, so an equal epoch and offset mean equal records.
        """
        for epoch, start, end in ranges(segment):
            place = self._places.get(epoch)
            if place is not None:
                is_last = place + 1 == len(self.entries)
                epoch_end = self.log_end_offset if is_last else self.entries[place + 1][1]
                first = max(start, self.entries[place][1])
                if first <= end and first < epoch_end:
                    yield first

    def shared_end(self, segment: RemoteLogSegmentMetadata) -> int | None:
        """Where a segment that begins in this history leaves it; None if its first record is not in this history."""
        reached = max(segment.start_offset, self.entries[0][1]) if self.entries else None
        for epoch, start, end in ranges(segment):
            place = self._places.get(epoch)
            if reached is None or place is None or not max(start, self.entries[place][1]) <= reached:
                break
            following = self.entries[place + 1][1] if place + 1 < len(self.entries) else self.log_end_offset
            reached = max(reached, min(end + 1, following))
            if following <= end:
                break
        return reached if reached is not None and reached > segment.start_offset else None

    def place_of(self, segment: RemoteLogSegmentMetadata) -> int | None:
        """Where the scan first meets a segment: the position of its oldest epoch that the log knows."""
        return min(
            (self._places[epoch] for epoch, _ in segment.segment_leader_epochs if epoch in self._places), default=None
        )


def clipped_epochs(leader_epochs: Epochs, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """The epochs that have records in [start_offset, end_offset); the first one starts at start_offset."""
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
    """The last offset of this history that the tier holds, NOTHING if none. Epochs are checked from the newest on.
    Records of a segment beyond the end of an epoch were never part of the log and do not count.
    """
    end_offset = log_end_offset
    for epoch, start_offset in reversed(leader_epochs):
        highest = highest_for_epoch(epoch)
        if highest is not None:
            return min(highest, end_offset - 1)
        end_offset = start_offset
    return NOTHING


def lowest_remote_offset(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> int | None:
    """The first offset of this history that can be read from the tier; None if there is none. A segment counts even if
    only a part of it belongs to this history.
    """
    found: list[int] = []
    for one in segments:
        if one.state is FINISHED:
            found += lineage.shared_starts(one)
    return min(found, default=None)


def covered_end(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, *, start: int) -> int:
    """The last offset up to which the tier has this history from `start` on without a gap; start - 1 if it does not
    have `start`.
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
    """A closed segment to copy, and the base offset of the next one."""

    segment: Local
    next_offset: int


def plan_copies(segments: Sequence[Local], *, from_offset: int, last_stable_offset: int) -> list[CopyCandidate[Local]]:
    """The closed segments, in order, that have records from `from_offset` on and lie below the last stable offset. The
    active segment is last in `segments`.

    Unlike a search by base offset, this never omits the segment that was rolled last.
    """
    return [
        CopyCandidate(segment, following.base_offset)
        for segment, following in pairwise(segments)
        if from_offset < following.base_offset <= last_stable_offset and segment.size
    ]


class Lag(NamedTuple):
    """Closed segments that are not in the tier yet."""

    bytes: int
    segments: int


def copy_lag(segments: Sequence[LocalSegment], *, from_offset: int) -> Lag:
    """The copy lag: the closed segments that have records from `from_offset` on, whether below the last stable offset
    or not. The active segment, last in `segments`, does not count.
    """
    waiting = [segment for segment, following in pairwise(segments) if following.base_offset > from_offset]
    return Lag(sum(segment.size for segment in waiting), len(waiting))


def local_only_bytes(segments: Sequence[LocalSegment], *, highest_remote: int) -> int:
    """Bytes of the local segments that are not in the tier at all. They count against the whole log's retention."""
    return sum(segment.size for segment in segments if segment.base_offset > highest_remote)


# --- expiry -----------------------------------------------------------------------------------------------------------


class ExpiryReason(StrEnum):
    """Why a remote segment is deleted, as shown to operators."""

    LOG_START = "log start offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"
    EPOCHS = "its leader epochs lie before the log's"
    ABANDONED = "its copy was not finished"
    AGAIN = "its deletion was not finished"


class DoomedSegment(NamedTuple):
    """A remote segment to delete."""

    metadata: RemoteLogSegmentMetadata
    reason: ExpiryReason


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """The segments to delete now, in this order, once log_start_offset is at least the one given here.

    Units   size_bytes is what the tier holds of the partition: finished copies and segments being deleted, each once;
            retained_bytes are those that count against retention; offsets count records
    Shape   log_start_offset is None if it does not change
    """

    log_start_offset: int | None = None
    doomed: tuple[DoomedSegment, ...] = ()
    size_bytes: int = 0
    segments: int = 0
    retained_bytes: int = 0

    @property
    def lag(self) -> Lag:
        """Segments to delete that still exist."""
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
    leased_from: int | None = None,
) -> ExpiryPlan:
    """Decide which remote segments of a partition are deleted.

    `local_bytes` are only in the local log; `copying` are under way now; `is_abandoned` says for an unfinished copy
    that is not under way that it will never be finished. A retention of -1 is no limit. A lease holds the records
    from `leased_from` on against retention.
    """
    known = {one.remote_log_segment_id: one for one in segments}.values()
    held = [one for one in known if one.state in (FINISHED, DELETING)]
    doomed = [
        DoomedSegment(one, ExpiryReason.AGAIN)
        for one in known
        if one.state is DELETING and one.remote_log_segment_id not in copying
    ]
    doomed += [
        DoomedSegment(one, ExpiryReason.ABANDONED)
        for one in known
        if one.state is STARTED and one.remote_log_segment_id not in copying and is_abandoned(one)
    ]
    new_start = log_start_offset
    # Segments that are being deleted already neither count as retained nor reduce the excess.
    counted = _counted(known, lineage)
    retained = local_bytes + sum(one.segment_size_in_bytes for one in known if one.remote_log_segment_id in counted)
    excess = retained - retention_bytes if retention_bytes >= 0 else 0
    is_over = False  # segments below the log start offset are deleted regardless
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
        elif one.end_offset < new_start:  # it lies within a segment that goes now
            reason = ExpiryReason.LOG_START
        elif leased_from is not None and one.end_offset >= leased_from:
            is_over = True
            continue
        elif retention_ms >= 0 and timestamp_ms - one.max_timestamp_ms > retention_ms:
            reason = ExpiryReason.TIME
        elif excess > 0 and one.segment_size_in_bytes <= excess:
            reason = ExpiryReason.SIZE
        else:
            is_over = True
            continue
        doomed.append(DoomedSegment(one, reason))
        if is_valid and one.remote_log_segment_id in counted:
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


def _counted(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> set[RemoteLogSegmentId]:
    """The segments that count against retention: not those that lie within another one. Two leaders may have copied the
    same records; if both copies counted, good data would be deleted too early. Kafka counts both.
    """
    counted, end = set(), NOTHING
    for one in sorted(segments, key=lambda one: (one.start_offset, -one.end_offset)):
        if one.end_offset > end and one.state is FINISHED and one in lineage:
            counted.add(one.remote_log_segment_id)
            end = one.end_offset
    return counted


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
    """Segments below the log start offset whose epochs are all older than the log's first one.

    Such segments above the log start offset cannot be read either. But they may be the rest of a log whose files were
    lost and which started over at offset 0. So they stay until the log start offset has passed them; Kafka deletes
    them immediately.
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
