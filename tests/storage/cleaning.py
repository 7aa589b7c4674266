"""Helpers of the tests of the cleaner: a log that is cleaned, and what a consumer of it ends with."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.storage.cleaning_logs import assess_log, plan_pass, replace, sources_of
from kbroker.storage.cleaning_pass import CleanedSegment, Finished, clean
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from tests.storage.logs import read_all
from wire.record_batch import Record, build_batch

COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=2_000, min_cleanable_dirty_ratio=0.0, index_interval_bytes=300
)


def put(log: Log, records: Iterable[tuple[str, str | None]], *, timestamp_ms: int = 1_000, **header: object) -> None:
    """Append one batch of keys and values."""
    made = [Record(-1, timestamp_ms, key.encode(), None if value is None else value.encode()) for key, value in records]
    batch = build_batch(made, **header)  # type: ignore[arg-type]
    log.append(bytearray(batch), leader_epoch=0, timestamp_ms=timestamp_ms)


def clean_log(
    log: Log,
    *,
    timestamp_ms: int = 10_000,
    stable_offset: int | None = None,
    map_entries: int = 1_000,
    max_decompressed_bytes: int = 1 << 20,
) -> Finished | None:
    """Run a pass over everything below the active segment; None if nothing is dirty."""
    stable_offset = log.log_end_offset if stable_offset is None else stable_offset
    found = assess_log(log, stable_offset=stable_offset, timestamp_ms=timestamp_ms)
    if not found.is_due:
        return None
    sources = sources_of(log, found)
    plan = plan_pass(
        log,
        sources,
        found,
        timestamp_ms=timestamp_ms,
        wall_ms=timestamp_ms,
        map_entries=map_entries,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    for step in clean(log.disk, plan):
        if isinstance(step, CleanedSegment):
            assert replace(log, sources, step, due_ms=0)
        elif isinstance(step, Finished):
            log.cleaned_offset = step.end_offset
            return step
    raise AssertionError("a pass ends with Finished")


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record that is not a marker."""
    return [
        (record.offset, record.key, record.value)
        for batch in read_all(log)
        if not batch.is_control
        for record in batch.records()
    ]


def final_map(log: Log) -> dict[bytes | None, bytes]:
    """What a consumer that reads the whole log knows of each key."""
    values = {key: value for _, key, value in contents(log)}
    return {key: value for key, value in values.items() if value is not None}
