"""The metadata of one partition's remote segments, computed from the events of the metadata topic.

A segment starts as COPY_SEGMENT_STARTED and is readable once it is COPY_SEGMENT_FINISHED. It is removed from the cache
after DELETE_SEGMENT_STARTED and DELETE_SEGMENT_FINISHED. An invalid event is dropped and counted: it may come from
another broker, from any client that can write to the topic, or twice.

Offsets are looked up in a leader epoch, because after an unclean election two leaders may have copied different records
with the same offsets. In each epoch a finished segment has a range of offsets. Two leaders with different segment
boundaries may create ranges that lie within another range. Then only the larger one is looked up. The others stay
listed, so that retention deletes them, and are looked up again if the larger one is deleted first. Hence the ranges
that are looked up have rising starts and rising ends. If any finished segment contains an offset, the range with the
last start at or below the offset contains it.

Apache Kafka's cache differs; its result depends on the order of events. A smaller segment that is finished after a
larger one hides it there, and an update without custom metadata erases them.

Source  KIP-405; RemoteLogMetadataCache and RemoteLogLeaderEpochState of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kbroker.tiered.api import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
)

MetadataEvent: TypeAlias = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate

NEXT_STATES: Final[Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]]] = {
    None: frozenset({STARTED}),
    STARTED: frozenset({STARTED, FINISHED, DELETING}),
    FINISHED: frozenset({FINISHED, DELETING}),
    DELETING: frozenset({DELETING, DELETED}),
    DELETED: frozenset({DELETED}),
}
"""The states that may follow a state of a segment; None is that of an unknown one."""


class _Range(NamedTuple):
    """The offsets of a segment in one leader epoch, both inclusive. Of two equal ranges the greater tuple wins."""

    start: int
    end: int
    event_timestamp_ms: int
    segment_id: UUID


_START, _END = itemgetter(0), itemgetter(1)  # of a _Range; faster than attrgetter


class _EpochSegments:
    """The segments with records of one leader epoch.

    Shape      ranges are those that are looked up; covered are the others: each lies within one of `ranges`
    Invariant  the starts and the ends of ranges both rise strictly
    Note       highest_offset never falls: records that were copied once are not copied again after their deletion; it
               is -1 without a finished segment
    """

    __slots__ = ("covered", "highest_offset", "ranges")

    def __init__(self, highest_offset: int = -1) -> None:
        self.ranges: list[_Range] = []
        self.covered: dict[UUID, _Range] = {}
        self.highest_offset = highest_offset

    def put(self, one: _Range) -> None:
        """Add a finished segment."""
        self.highest_offset = max(self.highest_offset, one.end)
        at = bisect_right(self.ranges, one.start, key=_START) - 1
        if at >= 0 and (held := self.ranges[at]).end >= one.end and (held[:2] != one[:2] or held > one):
            self.covered[one.segment_id] = one
            return
        first, last = bisect_left(self.ranges, one.start, key=_START), bisect_right(self.ranges, one.end, key=_END)
        self.covered.update((held.segment_id, held) for held in self.ranges[first:last])
        self.ranges[first:last] = [one]

    def remove(self, segment_id: UUID, start: int) -> None:
        """Remove a segment, if it is a finished one with records of this epoch."""
        at = bisect_left(self.ranges, start, key=_START)
        if self.covered.pop(segment_id, None) or [one.segment_id for one in self.ranges[at : at + 1]] != [segment_id]:
            return
        del self.ranges[at]
        covered, self.covered = self.covered, {}
        for other in covered.values():
            self.put(other)


class RemoteLogMetadataCache:
    """The remote segments of one partition; see the module's docstring.

    Shape   segments maps the id of each segment that is not deleted to its metadata; the highest_offsets of an earlier
            cache, by leader epoch, stay valid in this one
    Units   offsets count records
    """

    __slots__ = ("_epochs", "segments")

    def __init__(self, highest_offsets: Iterable[tuple[int, int]] = ()) -> None:
        self.segments: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._epochs = {epoch: _EpochSegments(highest) for epoch, highest in highest_offsets}

    # --- events -------------------------------------------------------------------------------------------------------

    def check(self, event: MetadataEvent) -> None:
        """Raise an error if the event is invalid in the current state.

        Errors  RemoteResourceNotFound for an update of an unknown segment; ValueError for everything else
        """
        segment_id = event.remote_log_segment_id.id
        existing = self.segments.get(segment_id)
        if isinstance(event, RemoteLogSegmentMetadata):
            _check_segment(event)
        elif existing is None:
            partition = event.remote_log_segment_id.topic_id_partition
            raise RemoteResourceNotFound(f"no remote segment {segment_id} of {partition.name}")
        elif event.state is STARTED:
            raise ValueError(f"remote segment {segment_id}: an update cannot begin a copy")
        state = None if existing is None else existing.state
        if event.state not in NEXT_STATES[state]:
            known = "unknown" if state is None else state.name
            raise ValueError(f"remote segment {segment_id}: {known} -> {event.state.name}")

    def replay(self, event: MetadataEvent) -> str | None:
        """Apply an event; returns None, or why it was dropped."""
        try:
            self.check(event)
        except (RemoteResourceNotFound, ValueError) as error:
            return str(error)
        existing = self.segments.pop(event.remote_log_segment_id.id, None)
        if existing is not None:
            self._unlist(existing)
        if isinstance(event, RemoteLogSegmentMetadata):
            self.put(event)
        elif event.state is not DELETED:
            assert existing is not None
            self.put(updated(existing, event))
        return None

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a segment in any state, without checks."""
        segment_id = metadata.remote_log_segment_id.id
        self.segments[segment_id] = metadata
        is_finished = metadata.state is FINISHED
        for leader_epoch, start, end in ranges(metadata):
            epoch = self._epochs.setdefault(leader_epoch, _EpochSegments())
            if is_finished and end >= start:
                epoch.put(_Range(start, end, metadata.event_timestamp_ms, segment_id))

    def _unlist(self, metadata: RemoteLogSegmentMetadata) -> None:
        for leader_epoch, start, _ in ranges(metadata):
            self._epochs[leader_epoch].remove(metadata.remote_log_segment_id.id, start)

    # --- queries ------------------------------------------------------------------------------------------------------

    def remote_log_segment_metadata(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished segment that contains `offset` as written in `leader_epoch`."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return None
        at = bisect_right(epoch.ranges, offset, key=_START) - 1
        return self.segments[epoch.ranges[at].segment_id] if at >= 0 and epoch.ranges[at].end >= offset else None

    def next_segment_with_txn_index(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of this epoch that ends at or after `offset` and may have a transaction index.
        Source: KIP-1058
        """
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return None
        following = epoch.ranges[bisect_left(epoch.ranges, offset, key=_END) :]
        segments = (self.segments[one.segment_id] for one in following)
        return next((one for one in segments if not one.txn_index_empty), None)

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """The last offset of this epoch that was ever in a finished segment, even if the segment is deleted by now."""
        epoch = self._epochs.get(leader_epoch)
        return None if epoch is None or epoch.highest_offset < 0 else epoch.highest_offset

    def list_remote_log_segments(self) -> list[RemoteLogSegmentMetadata]:
        """The segments that are not deleted, in every state."""
        return list(self.segments.values())

    @property
    def highest_offsets(self) -> list[tuple[int, int]]:
        """(leader epoch, highest_offset_for_epoch) of each epoch that has one."""
        return [(number, epoch.highest_offset) for number, epoch in self._epochs.items() if epoch.highest_offset >= 0]


def ranges(metadata: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int, int]]:
    """(leader_epoch, first offset, last offset) of each epoch of a segment; last < first for one without records."""
    epochs = metadata.segment_leader_epochs
    for at, (leader_epoch, start) in enumerate(epochs):
        end = epochs[at + 1][1] - 1 if at + 1 < len(epochs) else metadata.end_offset
        yield leader_epoch, max(start, metadata.start_offset), min(end, metadata.end_offset)


def updated(existing: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
    """The metadata after an update; custom metadata is kept if it has none."""
    custom = existing.custom_metadata if update.custom_metadata is None else update.custom_metadata
    return replace(
        existing,
        state=update.state,
        event_timestamp_ms=update.event_timestamp_ms,
        broker_id=update.broker_id,
        custom_metadata=custom,
    )


def _check_segment(metadata: RemoteLogSegmentMetadata) -> None:
    segment_id = metadata.remote_log_segment_id.id
    if metadata.end_offset < metadata.start_offset or metadata.start_offset < 0:
        raise ValueError(f"remote segment {segment_id}: offsets {metadata.start_offset} to {metadata.end_offset}")
    if metadata.segment_size_in_bytes < 0:
        raise ValueError(f"remote segment {segment_id}: {metadata.segment_size_in_bytes} bytes")
    epochs = [epoch for epoch, _ in metadata.segment_leader_epochs]
    if not epochs or any(one >= other for one, other in pairwise(epochs)):
        raise ValueError(f"remote segment {segment_id}: leader epochs {epochs}")
