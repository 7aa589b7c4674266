"""Reads the log of a partition of `__remote_log_metadata`, and skips damage.

After damage the next batch is found by its checksum. All bytes before it are skipped, and the number of skipped offsets
is reported.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.storage.log import Log
from kbroker.storage.valid_batches import read_behind_damage, read_undamaged
from kbroker.tiered.metadata_topic import Events, read_events
from wire.errors import KafkaError
from wire.record_batch import batches

_FEW_RECORDS: Final = 8
_FEW_BYTES: Final = 8 << 10


def read_new(log: Log, offset: int, *, end_offset: int, partition_count: int) -> Events | None:
    """The events from `offset` up to `end_offset`, for the event loop, which must not block. None unless they are few,
    intact, and in the memory of the last appends.
    """
    if offset < log.tail.start_offset or end_offset - offset > _FEW_RECORDS:
        return None
    try:
        with log.disk_errors():
            data = log.read(offset, max_bytes=_FEW_BYTES, end_offset=end_offset, at_least_one_batch=False).read()
    except KafkaError:
        return None  # read_on will report it
    events = read_events(data, offset, end_offset=end_offset, partition=log.partition, partition_count=partition_count)
    return events if events.next_offset > offset and not events.skipped else None


def read_on(log: Log, offset: int, *, end_offset: int, max_bytes: int, partition_count: int) -> Events:
    """The events from `offset` on, at most `max_bytes` (or one batch) and below `end_offset`. Blocking.

    If the result has the same next_offset, the next batch reaches beyond `end_offset`.
    Errors  KAFKA_STORAGE_ERROR; OFFSET_OUT_OF_RANGE if the log was truncated in between
    """
    start = max(offset, log.local_log_start_offset)
    found = Events(offset)
    found.skip_to(start, "the log starts later")
    if start >= end_offset:
        return found
    read = partial(read_events, end_offset=end_offset, partition=log.partition, partition_count=partition_count)
    data = read_undamaged(log, start, max_bytes=max_bytes, end_offset=end_offset) or b""
    first = next(batches(data), None)
    # After a damaged header the log continues with the next segment.
    events = read(data if first is not None and first.base_offset <= start else b"", start)
    if events.next_offset == start:
        behind = read_behind_damage(log, start, max_bytes=max_bytes, end_offset=end_offset)
        found.skip_to(behind.base_offset, "damaged")
        events = read(behind.data, found.next_offset)
    events.skipped[:0] = found.skipped
    return events
