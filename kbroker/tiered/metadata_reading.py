"""Reading the log of a partition of `__remote_log_metadata`, also where it is damaged.

Behind damage the next batch is found by its checksum: whatever bytes lie before it, and whatever they pretend to be,
are skipped, and how many offsets went with them is told.
"""

from __future__ import annotations

from typing import Final

from kbroker.storage.log import Log
from kbroker.tiered.metadata_topic import Events, read_events
from kbroker.tiered.valid_batches import valid_batches
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import batches

_FEW_RECORDS: Final = 8
_FEW_BYTES: Final = 8 << 10


def read_new(log: Log, offset: int, *, end_offset: int, partition_count: int) -> Events | None:
    """The events from `offset` up to `end_offset`, for the event loop, which waits neither for a disk nor for many of
    them: None unless they are few, of those that were appended last, and whole.
    """
    if offset < log.tail.start_offset or end_offset - offset > _FEW_RECORDS:
        return None
    try:
        with log.disk_errors():
            data = log.read(offset, max_bytes=_FEW_BYTES, end_offset=end_offset, at_least_one_batch=False).read()
    except KafkaError:
        return None  # it is told in the other way
    events = read_events(data, offset, end_offset=end_offset, partition=log.partition, partition_count=partition_count)
    return events if events.next_offset > offset and not events.skipped else None


def read_on(log: Log, offset: int, *, end_offset: int, max_bytes: int, partition_count: int) -> Events:
    """The events from `offset` on, of at most `max_bytes` (or one batch), none at or behind `end_offset`. Blocking.

    Where the answer has the same next_offset, a batch is there of which only a part lies before `end_offset`.
    Errors  KAFKA_STORAGE_ERROR; OFFSET_OUT_OF_RANGE where the log was cut meanwhile
    """
    start = max(offset, log.local_log_start_offset)
    found = Events(offset)
    found.skip_to(start, "the log begins later")
    if start >= end_offset:
        return found
    try:
        with log.disk_errors():
            data = log.read(start, max_bytes=max_bytes, end_offset=end_offset).read()
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        data = b""
    first = next(batches(data), None)
    # Where a header is damaged, the log itself goes on with the next segment.
    if first is not None and first.base_offset <= start:
        events = read_events(
            data, start, end_offset=end_offset, partition=log.partition, partition_count=partition_count
        )
    else:
        events = Events(start)
    if events.next_offset == start:
        events = _read_behind_damage(
            log, start, end_offset=end_offset, max_bytes=max_bytes, partition_count=partition_count
        )
    events.skipped[:0] = found.skipped
    return events


def _read_behind_damage(log: Log, offset: int, *, end_offset: int, max_bytes: int, partition_count: int) -> Events:
    found = Events(offset)
    log_end_offset = log.log_end_offset
    for segment in log.segments.from_offset(offset):
        with log.disk_errors():
            file = segment.open().file
            for position, batch in valid_batches(file.pread, segment.size):
                if not segment.base_offset <= batch.base_offset < batch.next_offset <= log_end_offset:
                    continue
                if batch.next_offset <= offset:
                    continue
                if batch.next_offset > end_offset:
                    found.skip_to(min(batch.base_offset, end_offset), "damaged")
                    return found
                data = file.pread(max(max_bytes, batch.size), position)
                found.skip_to(batch.base_offset, "damaged")
                events = read_events(
                    data,
                    found.next_offset,
                    end_offset=end_offset,
                    partition=log.partition,
                    partition_count=partition_count,
                )
                events.skipped[:0] = found.skipped
                return events
    found.skip_to(end_offset, "damaged")
    return found
