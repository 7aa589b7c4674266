"""The cleaner's access to a log: what can be cleaned, the input of a pass, replacing segments. Blocking."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.storage.cleaning import Cleanable, assess
from kbroker.storage.cleaning_batches import KnownProducer
from kbroker.storage.cleaning_files import replace_segments
from kbroker.storage.cleaning_pass import CleanedSegment, CleaningPlan
from kbroker.storage.log import Log
from kbroker.storage.segment import UNKNOWN, Segment
from wire.batch_header import HEADER_SIZE, BatchHeader


def assess_log(log: Log, *, stable_offset: int, timestamp_ms: int) -> Cleanable:
    """What a pass would clean. May read a few headers and index entries. Errors: KAFKA_STORAGE_ERROR."""
    segments = tuple(log.segments)
    with log.disk_errors():
        return assess(
            segments,
            log.config,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            cleaned_offset=log.cleaned_offset,
            stable_offset=stable_offset,
            timestamp_ms=timestamp_ms,
            first_timestamp=lambda at: _first_timestamp(segments[at]),
            largest_timestamp=lambda at: segments[at].newest_ms(),
        )


def _first_timestamp(segment: Segment) -> int:
    if segment.first_timestamp == UNKNOWN:
        segment.first_timestamp = BatchHeader(segment.open().file.pread(HEADER_SIZE, 0)).max_timestamp
    return segment.first_timestamp


def dirty_bytes(log: Log) -> int:
    """The bytes of the closed segments that no pass has cleaned."""
    start = log.log_start_offset if log.cleaned_offset is None else log.cleaned_offset
    return sum(segment.size for segment in tuple(log.segments)[:-1] if segment.base_offset >= start)


def sources_of(log: Log, found: Cleanable) -> tuple[Segment, ...]:
    """The segments that a pass reads."""
    return tuple(one for one in log.segments if one.base_offset < found.first_uncleanable_offset)


def plan_pass(
    log: Log,
    sources: Sequence[Segment],
    found: Cleanable,
    *,
    timestamp_ms: int,
    wall_ms: int,
    map_entries: int,
    max_decompressed_bytes: int,
) -> CleaningPlan:
    """The input of a pass. The caller prevents appends. Errors: KAFKA_STORAGE_ERROR.

    Units  timestamp_ms is the time that ends delete horizons. New ones count from wall_ms, which is not earlier: while
           timestamp_ms ignores a clock that was set ahead, they would be in the past once it follows
    """
    config, end = log.config, found.first_uncleanable_offset
    return CleaningPlan(
        log.directory,
        tuple((segment.base_offset, segment.size) for segment in sources),
        found.first_dirty_offset,
        end,
        log.aborted_between(log.segments.first.base_offset, end),
        {
            producer_id: KnownProducer(entry.producer_epoch, frozenset(batch.last_offset for batch in entry.batches))
            for producer_id, entry in log.producers.producers.items()
        },
        timestamp_ms=timestamp_ms,
        map_entries=map_entries,
        max_decompressed_bytes=max_decompressed_bytes,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        interval_bytes=config.index_interval_bytes,
        horizon_ms=wall_ms + config.delete_retention_ms,
    )


def replace(log: Log, sources: Sequence[Segment], cleaned: CleanedSegment, *, due_ms: int) -> bool:
    """Replace segments by the cleaned one; False if the log no longer has all of them as they were read.

    The caller prevents appends, truncations and retention. Errors: KAFKA_STORAGE_ERROR.
    """
    old = [segment for segment in sources if segment.base_offset in cleaned.base_offsets]
    present = {id(segment) for segment in tuple(log.segments)[:-1]}
    if log.is_closed or not all(id(segment) in present for segment in old):
        return False
    with log.disk_errors():
        replace_segments(log.files, old, size=cleaned.size, has_transactions=cleaned.has_transactions, due_ms=due_ms)
    return True
