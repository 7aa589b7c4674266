"""Recover one segment: one pass over its bytes that collects everything recovery needs.

The loop runs once for each batch, and a log may hold millions of small ones. So it reads header fields by index, keeps
its state in local variables, and calls other code only for rare events: an index entry every index.interval.bytes and a
new leader epoch. On one core it reads about 1.6 million batches of 200 bytes per second.

The pass remembers the positions of each producer's last five batches, because `ProducerState` needs no older ones. For
transactions every batch matters, so `kbroker.storage.loader` reads a segment with transactions again.

Memory  one chunk of the file, the index entries, and the positions for at most MAX_PRODUCERS producers
Source  LogSegment.recover of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from kbroker.runtime.ports import File
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.producer_state import REMEMBERED_BATCHES
from kbroker.storage.segment import MAX_RELATIVE_OFFSET, Segment
from wire.batch_header import (
    CONTROL_BIT,
    CRC_START,
    EPOCH_AND_MAGIC,
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_ID,
    POSITIONS,
    TRANSACTIONAL_BIT,
    BatchHeader,
    header_struct,
)
from wire.crc32c import crc32c

CHUNK_BYTES: Final = 1 << 20
MAX_PRODUCERS: Final = 4096
_SMALL_BYTES: Final = 4096  # below this size a copy is cheaper than a memoryview
_MIN_LENGTH: Final = HEADER_SIZE - FRAME_SIZE
_ATTRIBUTES_LOW: Final = POSITIONS["attributes"] + 1  # the byte with both bits
_FIELDS: Final = header_struct(
    base_offset="q",
    batch_length="I",
    partition_leader_epoch="5s",
    crc="I",
    last_offset_delta="I",
    max_timestamp="q",
    producer_id="q",
)


class RecoveredSegment(NamedTuple):
    """The result of recovering a segment.

    Shape  next_offset is the offset after the last good batch; producer_batches are the positions of each producer's
           last batches, ascending, or None if those are not sufficient
    Note   has_transactions: the transaction index is empty now, and must be made again from all batches
    Units  cut_bytes is how many bytes after the last good batch were truncated
    """

    next_offset: int
    cut_bytes: int
    producer_batches: tuple[int, ...] | None
    has_transactions: bool = False


def recover_segment(segment: Segment, epochs: LeaderEpochs, *, chunk_bytes: int = CHUNK_BYTES) -> RecoveredSegment:
    """Truncate a segment at the first damaged batch, rebuild its indexes and assign its leader epochs. Blocking."""
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
    checked, known_until = b"", base_offset  # epoch and magic as bytes, valid for batches that end before this offset
    windows: dict[int, deque[int]] = {}
    producer, window = NO_PRODUCER_ID, deque[int]()
    is_simple, has_transactions, is_damaged = True, False, False
    start = 0
    while start + HEADER_SIZE <= end and not is_damaged:
        chunk = file.pread(min(chunk_bytes, end - start), start)
        view, size, at = memoryview(chunk), len(chunk), 0
        unindexed_until = last_indexed + interval_bytes - start
        last_header = size - HEADER_SIZE
        while at <= last_header:
            base, length, epoch_and_magic, crc, delta, timestamp, producer_id = unpack(chunk, at)
            stop, last = at + length + FRAME_SIZE, base + delta
            if length < _MIN_LENGTH or base < next_offset:
                is_damaged = True
                break
            if stop <= size:
                found = checksum((chunk if length < _SMALL_BYTES else view)[at + CRC_START : stop])
            elif start + stop > end:
                is_damaged = True
                break
            elif length + FRAME_SIZE <= chunk_bytes:
                break  # the next chunk holds the whole batch
            else:
                found = _checksum_of(file, start + at + CRC_START, start + stop, chunk_bytes)
            if found != crc:
                is_damaged = True
                break
            if last >= known_until or epoch_and_magic != checked:
                epoch, magic = EPOCH_AND_MAGIC.unpack(epoch_and_magic)
                if magic != MAGIC or last > max_offset:
                    is_damaged = True
                    break
                # The checkpoint may start an epoch too late: a raised log start may have been written only there.
                if epochs.epoch_for_offset(base) != epoch:
                    epochs.assign(epoch, base)
                checked, known_until = epoch_and_magic, min(epochs.next_start(base), max_offset + 1)
            if timestamp > latest:
                latest, latest_offset = timestamp, last
            if at > unindexed_until:
                last_indexed, unindexed_until = start + at, at + interval_bytes
                add_offset(last - base_offset, last_indexed)
                if latest > indexed:
                    indexed = latest
                    add_time(latest, latest_offset - base_offset)
            if producer_id != NO_PRODUCER_ID:
                if chunk[at + _ATTRIBUTES_LOW] & (TRANSACTIONAL_BIT | CONTROL_BIT):
                    is_simple, has_transactions = False, True
                if producer_id != producer:
                    producer, window = producer_id, windows.setdefault(producer_id, deque(maxlen=REMEMBERED_BATCHES))
                    if len(windows) > MAX_PRODUCERS:
                        is_simple = False
                        windows.clear()
                window.append(start + at)
            next_offset = last + 1
            at = stop
        if not size:
            break  # the file has become shorter
        start += at
    segment.size = start
    if start:
        segment.max_timestamp = latest
        segment.max_timestamp_offset = latest_offset if latest >= 0 else base_offset
        segment.last_index_position, segment.indexed_timestamp = last_indexed, indexed
        segment.index_entries, segment.time_entries = segment.offset_index.entries, segment.time_index.entries
        segment.first_timestamp = BatchHeader(file.pread(HEADER_SIZE, 0)).max_timestamp
    if start < end:
        file.truncate(start)
    segment.finish_indexes()
    positions = tuple(sorted(position for window in windows.values() for position in window)) if is_simple else None
    return RecoveredSegment(next_offset, end - start, positions, has_transactions)


def producer_headers(segment: Segment, positions: tuple[int, ...]) -> list[BatchHeader]:
    """The batch headers at these positions of a segment."""
    file = segment.open().file
    return [BatchHeader(file.pread(HEADER_SIZE, position)) for position in positions]


def _checksum_of(file: File, start: int, end: int, chunk_bytes: int) -> int:
    """The CRC of a batch that is larger than a chunk, read in pieces: a damaged header may claim any size."""
    checksum = 0
    while start < end:
        piece = file.pread(min(chunk_bytes, end - start), start)
        if not piece:
            break
        checksum = crc32c(piece, checksum)
        start += len(piece)
    return checksum
