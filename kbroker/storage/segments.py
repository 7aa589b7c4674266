"""The segments of a log, ordered by offset.

Each change makes a new tuple and replaces the old one, so that readers in other threads get a consistent view. A log
has few segments and they change rarely, so the copies are cheap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter

from kbroker.storage.durable import sync_names
from kbroker.storage.segment import SEGMENT_SUFFIXES, Segment


def unlink_segment(segment: Segment) -> None:
    """Unlink a segment's files; readers that have them open can continue."""
    segment.is_gone = True
    for suffix in SEGMENT_SUFFIXES:
        path = segment.path(suffix)
        segment.files.forget(path)
        with suppress(FileNotFoundError):
            segment.files.disk.unlink(path)


def unlink_newest_first(segments: Sequence[Segment]) -> None:
    """Unlink segments at the end of a log, or all of them.

    Each removal is durable before the next one: if a later segment reappeared after a loss of power without the one
    before it, the log would have a hole.
    """
    for segment in reversed(segments):
        unlink_segment(segment)
        sync_names(segment.files.disk, segment.directory)


_base_offset = attrgetter("base_offset")


class SegmentList:
    """Never empty once loaded; the last segment is the active one."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: tuple[Segment, ...] = ()

    def replace(self, segments: Iterable[Segment]) -> None:
        self._segments = tuple(sorted(segments, key=_base_offset))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __bool__(self) -> bool:
        return bool(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self._segments)

    def add(self, segment: Segment) -> None:
        self.replace((*self._segments, segment))

    def remove(self, gone: Iterable[Segment]) -> None:
        """Remove segments by identity."""
        names = {id(segment) for segment in gone}
        self.replace(segment for segment in self._segments if id(segment) not in names)

    def exchange(self, gone: Iterable[Segment], new: Segment) -> None:
        """Replace segments by one, in one step."""
        names = {id(segment) for segment in gone}
        self.replace((new, *(segment for segment in self._segments if id(segment) not in names)))

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that holds `offset`, if any, and all later ones."""
        segments = self._segments
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]
