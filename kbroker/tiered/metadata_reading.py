"""Reads a partition of `__remote_log_metadata` from a local log or from fetched bytes, and skips damage.

After damage the next batch is found by its checksum. All bytes before it are skipped, and the number of skipped offsets
is reported.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.runtime.net_ports import Env
from kbroker.storage.log import Log
from kbroker.storage.valid_batches import read_behind_damage, read_undamaged, valid_batches
from kbroker.tiered.metadata_topic import NO_EPOCH, Events, read_events
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import batches

SLICE_BYTES: Final = 64 << 10
"""The events of one slice are applied in one step: about 500 events, a few milliseconds."""

_FEW_RECORDS: Final = 8
_FEW_BYTES: Final = 8 << 10


async def read_log(env: Env, log: Log, offset: int, *, end_offset: int, partition_count: int) -> Events:
    """The next events from `offset` up to `end_offset`.

    Errors  as read_on; OFFSET_NOT_AVAILABLE if the next batch reaches beyond `end_offset`
    """
    events = read_new(log, offset, end_offset=end_offset, partition_count=partition_count)
    if events is None:
        read = partial(read_on, end_offset=end_offset, max_bytes=SLICE_BYTES, partition_count=partition_count)
        events = await env.run_blocking(read, log, offset)
    return _with_progress(events, offset, end_offset)


def read_fetched(
    data: bytes | memoryview, offset: int, *, end_offset: int, partition: int, partition_count: int
) -> Events:
    """The events from `offset` up to `end_offset` in the answer to a Fetch.

    If no batch behind the damage is intact, the headers say how far it reaches, as they do for the leader.

    Errors  OFFSET_NOT_AVAILABLE if the next batch reaches beyond `end_offset`
    """
    read = partial(read_events, end_offset=end_offset, partition=partition, partition_count=partition_count)
    events = read(data, offset)
    if events.next_offset == offset < end_offset and data:
        known = bytes(data)
        found = Events(offset)
        for position, batch in valid_batches(lambda size, at: known[at : at + size], len(known)):
            if offset < batch.next_offset:
                found.skip_to(min(batch.base_offset, end_offset), "damaged at the leader")
                events = read(known[position:], found.next_offset)
                break
        else:
            ends = [each.next_offset for each in batches(known) if offset < each.next_offset <= end_offset]
            found.skip_to(max(ends, default=offset + 1), "damaged at the leader")
            events.next_offset = found.next_offset
        events.skipped[:0] = found.skipped
    return _with_progress(events, offset, end_offset)


def _with_progress(events: Events, offset: int, end_offset: int) -> Events:
    if events.next_offset == offset < end_offset:
        message = f"the high watermark {end_offset} is inside the batch with offset {offset}"
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, message)
    return events


def is_truncated(log: Log, offset: int, leader_epoch: int) -> bool:
    """Whether the log no longer has the batch of `leader_epoch` that ended at `offset`."""
    if log.log_end_offset < offset:
        return True
    if leader_epoch == NO_EPOCH or not log.leader_epochs.entries:
        return False
    found_epoch, end_offset = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
    return found_epoch != leader_epoch or end_offset < offset


def has_batch(log: Log, base_offset: int, crc: int) -> bool:
    """Whether the log has this batch, or starts after it. Blocking. Errors: KAFKA_STORAGE_ERROR."""
    if base_offset < log.local_log_start_offset:
        return True
    try:
        data = log.read(base_offset, max_bytes=1).read()
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        return False
    return any((one.base_offset, one.crc) == (base_offset, crc) for one in batches(data))


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
