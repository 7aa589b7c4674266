"""Decide which log the cleaner compacts next, which part of it, and which segments become one.

A log has a clean part, which earlier passes have compacted, and a dirty part. A pass looks up the last offset of each
key in the dirty part, and then copies all segments up to its end without the older records of these keys. It never
touches the active segment, records at or above the last stable offset, or records younger than min.compaction.lag.ms. A
log is due if the dirty part is a large enough fraction of it, or if a dirty record is older than max.compaction.lag.ms.

Source  LogCleanerManager, Cleaner.groupSegmentsBySize of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import LocalSegment
from kbroker.storage.segment import MAX_RELATIVE_OFFSET


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What a pass over one log would clean.

    Shape  a pass cleans up to first_uncleanable_offset, where a segment starts; first_dirty_offset may be in a segment
    Units  bytes are those of whole segments, so a segment that is partly dirty counts as clean and as cleanable;
           delay_ms is how long ago max.compaction.lag.ms was over, 0 if it is not
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    min_ratio: float

    @property
    def ratio(self) -> float:
        """The dirty fraction of what a pass reads."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        return self.cleanable_bytes > 0 and (self.delay_ms > 0 or self.ratio > self.min_ratio)


def assess(
    segments: Sequence[LocalSegment],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    cleaned_offset: int | None,
    stable_offset: int,
    timestamp_ms: int,
    first_timestamp: Callable[[int], int],
    largest_timestamp: Callable[[int], int],
) -> Cleanable:
    """Assess a log; the last segment is the active one.

    cleaned_offset is the end of the last pass, None before the first one. `first_timestamp(i)` is the timestamp of the
    first batch of segment i, `largest_timestamp(i)` its largest one, -1 for none; they may cost a read.
    """
    active = len(segments) - 1
    starts = [segment.base_offset for segment in segments]
    dirty_offset = log_start_offset if cleaned_offset is None else cleaned_offset
    if not log_start_offset <= dirty_offset <= log_end_offset:
        dirty_offset = log_start_offset
    first_dirty = max(bisect_right(starts, dirty_offset) - 1, 0)
    end = max(bisect_right(starts, min(stable_offset, starts[active])) - 1, 0)
    if config.min_compaction_lag_ms > 0:
        latest_ms = timestamp_ms - config.min_compaction_lag_ms
        end = next((i for i in range(first_dirty, end) if largest_timestamp(i) > latest_ms), end)
    delay_ms = 0
    if config.max_compaction_lag_ms < timestamp_ms and first_dirty < active:
        dirty_timestamps = (first_timestamp(i) for i in range(first_dirty, active))
        earliest_ms = min((one for one in dirty_timestamps if one > 0), default=timestamp_ms)
        delay_ms = max(0, timestamp_ms - config.max_compaction_lag_ms - earliest_ms)
    return Cleanable(
        dirty_offset,
        starts[end],
        clean_bytes=sum(segment.size for segment in segments if segment.base_offset < dirty_offset),
        cleanable_bytes=sum(segment.size for segment in segments[first_dirty:end]) if starts[end] > dirty_offset else 0,
        delay_ms=delay_ms,
        min_ratio=config.min_cleanable_dirty_ratio,
    )


Name = TypeVar("Name")


def dirtiest(logs: Iterable[tuple[Name, Cleanable]]) -> tuple[Name, Cleanable] | None:
    """The dirtiest of the logs that are due."""
    return max((one for one in logs if one[1].is_due), key=lambda one: one[1].ratio, default=None)


class SourceSegment(NamedTuple):
    """A segment that a pass reads. Units: bytes of the files."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[SourceSegment], *, segment_bytes: int, index_bytes: int, end_offset: int
) -> list[tuple[SourceSegment, ...]]:
    """Group adjacent segments that fit into one, by their sizes before cleaning and their range of offsets.

    The last segment ends at end_offset. So small segments are merged, and their number does not grow with each pass.
    """
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    groups: list[list[SourceSegment]] = []
    size = indexes = time_indexes = 0
    for segment, end in zip(segments, ends, strict=True):
        size += segment.size
        indexes += segment.index_bytes
        time_indexes += segment.time_index_bytes
        if (
            groups
            and size <= segment_bytes
            and indexes <= index_bytes
            and time_indexes <= index_bytes
            and (not segment.size or end - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size, indexes, time_indexes = segment.size, segment.index_bytes, segment.time_index_bytes
    return [tuple(group) for group in groups]


def below(segments: Iterable[SourceSegment], offset: int) -> tuple[SourceSegment, ...]:
    """The segments that start below an offset, in order."""
    return tuple(sorted((one for one in segments if one.base_offset < offset), key=attrgetter("base_offset")))


class Throttle:
    """Spreads the bytes of all passes over time, so that they stay below a rate, which may change at any time."""

    def __init__(self) -> None:
        self._excess_bytes = 0.0
        self._noted_ms = 0

    def delay_ms(self, size: int, *, rate: float, now_ms: int) -> int:
        """How long to wait after `size` more bytes. Units: rate in bytes per second, monotonic time."""
        rate = max(rate, 1.0)
        drained = rate * (now_ms - self._noted_ms) / 1000
        self._excess_bytes = max(0.0, self._excess_bytes - drained) + size
        self._noted_ms = now_ms
        return int(1000 * self._excess_bytes / rate)
