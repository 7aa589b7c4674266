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
from typing import Any, Final, TypeAlias
from uuid import UUID

from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    RemoteResourceNotFound,
    TopicIdPartition,
)
from wire.stored.tiered import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    SegmentLeaderEpochEntry,
)

MetadataEvent: TypeAlias = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata

_STARTED: Final = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING: Final = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED: Final = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

NEXT_STATES: Final[Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]]] = {
    None: frozenset({_STARTED}),
    _STARTED: frozenset({_STARTED, _FINISHED, _DELETING}),
    _FINISHED: frozenset({_FINISHED, _DELETING}),
    _DELETING: frozenset({_DELETING, _DELETED}),
    _DELETED: frozenset({_DELETED}),
}
"""The states that may follow a state of a segment; None is that of an unknown one."""

_Rank: TypeAlias = tuple[int, UUID]


class _EpochSegments:
    """The segments with records of one leader epoch.

    Shape      starts, ends and ids are parallel: the ranges that are looked up, both ends inclusive
    Shape      covered are finished segments whose range lies within another one
    Invariant  starts and ends both rise strictly
    Note       highest_offset never falls: records that were copied once are not copied again after their deletion
    """

    __slots__ = ("covered", "ends", "highest_offset", "ids", "ranks", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.ids: list[UUID] = []
        self.ranks: list[_Rank] = []
        self.covered: dict[UUID, tuple[int, int, _Rank]] = {}
        self.highest_offset: int | None = None

    def put(self, segment_id: UUID, start: int, end: int, rank: _Rank) -> None:
        """Add a finished segment. Of two with the same range, the one of higher rank is looked up."""
        if self.highest_offset is None or end > self.highest_offset:
            self.highest_offset = end
        at = bisect_right(self.starts, start) - 1
        if at >= 0 and self.ends[at] >= end:
            is_same = self.starts[at] == start and self.ends[at] == end
            if not is_same or self.ranks[at] > rank:
                self.covered[segment_id] = start, end, rank
                return
        first, last = bisect_left(self.starts, start), bisect_right(self.ends, end)
        for at in range(first, last):
            self.covered[self.ids[at]] = self.starts[at], self.ends[at], self.ranks[at]
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]
        self.ids[first:last] = [segment_id]
        self.ranks[first:last] = [rank]

    def remove(self, segment_id: UUID, start: int) -> None:
        """Remove a segment, if it is a finished one with records of this epoch."""
        at = bisect_left(self.starts, start)
        if self.covered.pop(segment_id, None) or self.ids[at : at + 1] != [segment_id]:
            return
        del self.starts[at], self.ends[at], self.ids[at], self.ranks[at]
        covered, self.covered = self.covered, {}
        for other_id, (other_start, other_end, rank) in covered.items():
            self.put(other_id, other_start, other_end, rank)


class RemoteLogMetadataCache:
    """The remote segments of one partition; see the module's docstring.

    Shape   segments maps the id of each segment that is not deleted to its metadata
    Units   offsets count records
    Note    dropped counts invalid events
    """

    __slots__ = ("_epochs", "delete_state", "dropped", "partition", "segments")

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.segments: dict[UUID, RemoteLogSegmentMetadata] = {}
        self.delete_state: RemotePartitionDeleteState | None = None
        self.dropped = 0
        self._epochs: dict[int, _EpochSegments] = {}

    # --- events -------------------------------------------------------------------------------------------------------

    def check(self, event: MetadataEvent) -> None:
        """Raise an error if the event is invalid in the current state.

        Errors  RemoteResourceNotFound for an update of an unknown segment; ValueError for everything else
        """
        if isinstance(event, RemotePartitionDeleteMetadata):
            known = self.delete_state
            expected = RemotePartitionDeleteState(0) if known is None else known
            if event.state is not expected and (known is None or event.state != known + 1):
                raise ValueError(f"deletion of {_name(self.partition)}: {_state(known)} -> {event.state.name}")
            return
        segment_id = event.remote_log_segment_id.id
        existing = self.segments.get(segment_id)
        if isinstance(event, RemoteLogSegmentMetadata):
            _check_segment(event)
        elif existing is None:
            raise RemoteResourceNotFound(f"no remote segment {segment_id} of {_name(self.partition)}")
        elif event.state is _STARTED:
            raise ValueError(f"remote segment {segment_id}: an update cannot begin a copy")
        state = None if existing is None else existing.state
        if event.state not in NEXT_STATES[state]:
            raise ValueError(f"remote segment {segment_id}: {_state(state)} -> {event.state.name}")

    def replay(self, event: MetadataEvent) -> str | None:
        """Apply an event; returns None, or why it was dropped."""
        try:
            self.check(event)
        except (RemoteResourceNotFound, ValueError) as error:
            self.dropped += 1
            return str(error)
        if isinstance(event, RemotePartitionDeleteMetadata):
            self.delete_state = event.state
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self.segments.clear()
                self._epochs.clear()
            return None
        existing = self.segments.pop(event.remote_log_segment_id.id, None)
        if existing is not None:
            self._unlist(existing)
        if isinstance(event, RemoteLogSegmentMetadata):
            self._list(event)
        elif event.state is not _DELETED:
            assert existing is not None
            self._list(updated(existing, event))
        return None

    def _list(self, metadata: RemoteLogSegmentMetadata) -> None:
        segment_id = metadata.remote_log_segment_id.id
        self.segments[segment_id] = metadata
        is_finished = metadata.state is _FINISHED
        for leader_epoch, start, end in ranges(metadata):
            epoch = self._epochs.setdefault(leader_epoch, _EpochSegments())
            if is_finished and end >= start:
                epoch.put(segment_id, start, end, (metadata.event_timestamp_ms, segment_id))

    def _unlist(self, metadata: RemoteLogSegmentMetadata) -> None:
        for leader_epoch, start, _ in ranges(metadata):
            self._epochs[leader_epoch].remove(metadata.remote_log_segment_id.id, start)

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left."""
        return not self.segments

    def remote_log_segment_metadata(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished segment that contains `offset` as written in `leader_epoch`."""
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return None
        at = bisect_right(epoch.starts, offset) - 1
        return self.segments[epoch.ids[at]] if at >= 0 and epoch.ends[at] >= offset else None

    def next_segment_with_txn_index(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of this epoch that ends at or after `offset` and may have a transaction index.
        Source: KIP-1058
        """
        epoch = self._epochs.get(leader_epoch)
        if epoch is None:
            return None
        for segment_id in epoch.ids[bisect_left(epoch.ends, offset) :]:
            if not self.segments[segment_id].txn_index_empty:
                return self.segments[segment_id]
        return None

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """The last offset of this epoch that was ever in a finished segment, even if the segment is deleted by now."""
        epoch = self._epochs.get(leader_epoch)
        return None if epoch is None else epoch.highest_offset

    def list_remote_log_segments(self) -> list[RemoteLogSegmentMetadata]:
        """The segments that are not deleted, in every state."""
        return list(self.segments.values())

    # --- snapshot -----------------------------------------------------------------------------------------------------

    @property
    def highest_offsets(self) -> dict[int, int]:
        """highest_offset_for_epoch of each epoch that has one. It is kept after the segments are deleted."""
        found = ((number, epoch.highest_offset) for number, epoch in self._epochs.items())
        return {number: highest for number, highest in found if highest is not None}

    @classmethod
    def restore(
        cls,
        partition: TopicIdPartition,
        segments: Iterable[RemoteLogSegmentMetadata],
        *,
        highest_offsets: Mapping[int, int],
        delete_state: RemotePartitionDeleteState | None,
    ) -> RemoteLogMetadataCache:
        """A cache with the given state of another cache."""
        cache = cls(partition)
        cache.delete_state = delete_state
        for metadata in segments:
            cache._list(metadata)
        for number, highest in highest_offsets.items():
            epoch = cache._epochs.setdefault(number, _EpochSegments())
            epoch.highest_offset = max(highest, -1 if epoch.highest_offset is None else epoch.highest_offset)
        return cache


def ranges(metadata: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int, int]]:
    """(leader_epoch, first offset, last offset) of each epoch of a segment; last < first for one without records."""
    epochs = metadata.segment_leader_epochs
    for at, (leader_epoch, start) in enumerate(epochs):
        end = epochs[at + 1][1] - 1 if at + 1 < len(epochs) else metadata.end_offset
        yield leader_epoch, max(start, metadata.start_offset), min(end, metadata.end_offset)


def segment_fields(metadata: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """The fields that all records of a segment share: those of the topic and those of a local snapshot."""
    return {
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "broker_id": metadata.broker_id,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "event_timestamp_ms": metadata.event_timestamp_ms,
        "segment_leader_epochs": [
            SegmentLeaderEpochEntry(leader_epoch=epoch, offset=offset)
            for epoch, offset in metadata.segment_leader_epochs
        ],
        "segment_size_in_bytes": metadata.segment_size_in_bytes,
        "custom_metadata": metadata.custom_metadata,
        "remote_log_segment_state": metadata.state,
        "txn_index_empty": metadata.txn_index_empty,
    }


def segment_from(
    segment_id: RemoteLogSegmentId, record: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataSnapshotRecord
) -> RemoteLogSegmentMetadata:
    """The segment of a record with these fields. Errors: ValueError for an unknown state."""
    # Kafka reads the entries into a sorted map: their order does not matter, and later duplicates win.
    epochs = {entry.leader_epoch: entry.offset for entry in record.segment_leader_epochs}
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=segment_id,
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        max_timestamp_ms=record.max_timestamp_ms,
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        segment_leader_epochs=tuple(sorted(epochs.items())),
        segment_size_in_bytes=record.segment_size_in_bytes,
        state=RemoteLogSegmentState(record.remote_log_segment_state),
        custom_metadata=record.custom_metadata,
        txn_index_empty=record.txn_index_empty,
    )


def to_snapshot_record(metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataSnapshotRecord:
    """A segment in the format of a local snapshot, without its partition."""
    return RemoteLogSegmentMetadataSnapshotRecord(
        segment_id=metadata.remote_log_segment_id.id, **segment_fields(metadata)
    )


def from_snapshot_record(
    partition: TopicIdPartition, record: RemoteLogSegmentMetadataSnapshotRecord
) -> RemoteLogSegmentMetadata:
    """The reverse. Errors: ValueError for an unknown state."""
    return segment_from(RemoteLogSegmentId(partition, record.segment_id), record)


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


def _state(state: RemoteLogSegmentState | RemotePartitionDeleteState | None) -> str:
    return "unknown" if state is None else state.name


def _name(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
