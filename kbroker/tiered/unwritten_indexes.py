"""Indexes that were fetched from the tier and are not yet written to disk; see `RemoteIndexCache.write_down`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.indexes import RemoteIndexes

MOST_BYTES: Final = 8 << 20


class Load:
    """A running load. is_wanted becomes False when the segment is removed; then its files are not kept."""

    __slots__ = ("is_wanted", "result")

    def __init__(self) -> None:
        self.is_wanted = True
        self.result: Future[RemoteIndexes] = Future()


class Unwritten(NamedTuple):
    """The unwritten indexes of one segment."""

    load: Load
    metadata: RemoteLogSegmentMetadata
    indexes: RemoteIndexes


class UnwrittenIndexes:
    """The unwritten indexes in order of arrival. The caller holds the lock of the tables.

    Bound  MOST_BYTES
    """

    __slots__ = ("_left", "_size_bytes")

    def __init__(self) -> None:
        self._left: dict[UUID, Unwritten] = {}
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._left)

    def leave(self, one: Unwritten) -> bool:
        """Add indexes; False if there is no room, or they are not wanted any more."""
        if not one.load.is_wanted or self._size_bytes + one.indexes.size_bytes > MOST_BYTES:
            return False
        segment_id = one.metadata.remote_log_segment_id.id
        self.forget(segment_id)
        self._left[segment_id] = one
        self._size_bytes += one.indexes.size_bytes
        return True

    def first(self) -> Unwritten | None:
        """The oldest one; it is not removed."""
        return next(iter(self._left.values()), None)

    def written(self, one: Unwritten) -> None:
        """Remove indexes that were written; newer ones of the same segment stay."""
        segment_id = one.metadata.remote_log_segment_id.id
        if self._left.get(segment_id) is one:
            self._take(segment_id)

    def forget(self, segment_id: UUID) -> None:
        """Drop the indexes of a segment; they are not wanted any more."""
        one = self._take(segment_id)
        if one is not None:
            one.load.is_wanted = False

    def _take(self, segment_id: UUID) -> Unwritten | None:
        one = self._left.pop(segment_id, None)
        if one is not None:
            self._size_bytes -= one.indexes.size_bytes
        return one
