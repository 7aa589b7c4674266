"""Reading a segment that a crash may have damaged: one pass over its bytes that finds everything recovery needs.

The loop runs once for each batch, and a log may hold millions of small ones. It therefore takes the fields of a header
by place, keeps its state in local variables, and calls other code only for what is rare: an index entry every
index.interval.bytes, a new leader epoch. On one core it reads about two million batches of 200 bytes a second.

Of each producer the pass remembers where its last five batches lie: nothing older can matter to `ProducerState`. Of
transactions every batch matters, so a segment that has any is read again by `kbroker.storage.loader`.

Memory  one chunk of the file, the index entries, and the positions for at most MAX_PRODUCERS producers
Source  LogSegment.recover of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from kbroker.runtime.ports import File
from kbroker.storage.batches import (
    CONTROL_BIT,
    CRC_START,
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    BatchHeader,
    header_at,
)
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.producer_state import REMEMBERED_BATCHES
from kbroker.storage.segment import MAX_RELATIVE_OFFSET, Segment

CHUNK_BYTES: Final = 1 << 20
MAX_PRODUCERS: Final = 4096
_SMALL_BYTES: Final = 4096  # copying so little costs less than a view of it
_MIN_LENGTH: Final = HEADER_SIZE - FRAME_SIZE
_ATTRIBUTES_LOW: Final = 22  # where the byte of the attributes lies that has both bits
_FIELDS: Final = Struct(">qiiBI2xi8xqq")  # a header up to producer_id, without attributes and base_timestamp


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """What one pass found in a segment.

    Shape  next_offset is behind the last good batch; producer_batches are the positions of the last batches of each
           producer, ascending, or None if they do not say everything about producers
    Units  cut_bytes is how many bytes behind the last good batch were cut off
    """

    next_offset: int
    cut_bytes: int
    producer_batches: tuple[int, ...] | None


def recover_segment(segment: Segment, epochs: LeaderEpochs, *, chunk_bytes: int = CHUNK_BYTES) -> RecoveredSegment:
    """Cut a segment at the first batch that is damaged, rebuild its indexes, and note its leader epochs. Blocking."""
    file = segment.open().file
    end = file.size()
    segment.reset_indexes()
    unpack, checksum = _FIELDS.unpack_from, crc32c
    base_offset, interval_bytes = segment.base_offset, segment.interval_bytes
    max_offset = base_offset + MAX_RELATIVE_OFFSET
    next_offset = base_offset
    last_indexed = latest_offset = 0
    latest = indexed = -1
    add_offset, add_time = segment.offset_index.append, segment.time_index.append
    epoch, epoch_end = -2, 0  # no batch has this epoch
    windows: dict[int, deque[int]] = {}
    producer, window = NO_PRODUCER_ID, deque[int]()
    is_simple, is_damaged = True, False
    start = 0
    while start + HEADER_SIZE <= end and not is_damaged:
        chunk = file.pread(min(chunk_bytes, end - start), start)
        view, size, at = memoryview(chunk), len(chunk), 0
        unindexed_until = last_indexed + interval_bytes - start
        last_header = size - HEADER_SIZE
        while at <= last_header:
            base, length, batch_epoch, magic, crc, delta, timestamp, producer_id = unpack(chunk, at)
            stop, last = at + length + FRAME_SIZE, base + delta
            if magic != MAGIC or length < _MIN_LENGTH or delta < 0 or base < next_offset or last > max_offset:
                is_damaged = True
                break
            if stop <= size:
                found = checksum((chunk if length < _SMALL_BYTES else view)[at + CRC_START : stop])
            elif start + stop > end:
                is_damaged = True
                break
            elif length + FRAME_SIZE <= chunk_bytes:
                break  # the next chunk has it whole
            else:
                found = _checksum_of(file, start + at + CRC_START, start + stop, chunk_bytes)
            if found != crc:
                is_damaged = True
                break
            if timestamp > latest:
                latest, latest_offset = timestamp, last
            if at > unindexed_until:
                last_indexed, unindexed_until = start + at, at + interval_bytes
                add_offset(last - base_offset, last_indexed)
                if latest > indexed:
                    indexed = latest
                    add_time(latest, latest_offset - base_offset)
            # The checkpoint may begin an epoch too late, where a raised log start was written there and nowhere else.
            if batch_epoch != epoch or base >= epoch_end:
                if epochs.epoch_for_offset(base) != batch_epoch:
                    epochs.assign(batch_epoch, base)
                epoch, epoch_end = batch_epoch, epochs.next_start(base)
            if producer_id != NO_PRODUCER_ID:
                if chunk[at + _ATTRIBUTES_LOW] & (TRANSACTIONAL_BIT | CONTROL_BIT):
                    is_simple = False
                if producer_id != producer:
                    producer, window = producer_id, windows.setdefault(producer_id, deque(maxlen=REMEMBERED_BATCHES))
                    if len(windows) > MAX_PRODUCERS:
                        is_simple = False
                        windows.clear()
                window.append(start + at)
            next_offset = last + 1
            at = stop
        if not size:
            break  # the file is shorter than it was
        start += at
    segment.size = start
    if start:
        segment.max_timestamp = latest
        segment.max_timestamp_offset = latest_offset if latest >= 0 else base_offset
        segment.last_index_position, segment.indexed_timestamp = last_indexed, indexed
        segment.index_entries, segment.time_entries = segment.offset_index.entries, segment.time_index.entries
        segment.first_timestamp = header_at(file.pread(HEADER_SIZE, 0)).max_timestamp
    if start < end:
        file.truncate(start)
    segment.finish_indexes()
    positions = tuple(sorted(position for window in windows.values() for position in window)) if is_simple else None
    return RecoveredSegment(next_offset, end - start, positions)


def producer_headers(segment: Segment, positions: tuple[int, ...]) -> list[BatchHeader]:
    """The headers at some positions of a segment."""
    file = segment.open().file
    return [header_at(file.pread(HEADER_SIZE, position)) for position in positions]


def _checksum_of(file: File, start: int, end: int, chunk_bytes: int) -> int:
    """The CRC of a batch that is larger than a chunk; the size of a damaged one may be anything."""
    checksum = 0
    while start < end:
        piece = file.pread(min(chunk_bytes, end - start), start)
        if not piece:
            break
        checksum = crc32c(piece, checksum)
        start += len(piece)
    return checksum
