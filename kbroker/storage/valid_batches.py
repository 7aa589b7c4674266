"""Find valid batches among damaged bytes by their checksums.

The readers of the broker's own topics (groups, the tier's metadata) skip damage: they use `read_undamaged`, and if that
returns nothing usable, `read_behind_damage` finds the next whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from kbroker.storage.log import Log
from wire.batch_header import HEADER_SIZE
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.record_batch import RecordBatch

Pread: TypeAlias = Callable[[int, int], bytes]
"""Reads this many bytes at a position; fewer only at the end."""

WINDOW_BYTES: Final = 1 << 20
_MAGIC: Final = b"\x02"
_MAGIC_POSITION: Final = 16
_MAX_BATCH_BYTES: Final = 64 << 20


def valid_batches(pread: Pread, size: int) -> Iterator[tuple[int, RecordBatch]]:
    """(position, batch) of every batch with a valid checksum in the first `size` bytes that `pread` reads."""
    position = 0
    while position + HEADER_SIZE <= size:
        data = pread(min(WINDOW_BYTES, size - position), position)
        if len(data) < HEADER_SIZE:
            return
        at = 0
        while True:
            magic = data.find(_MAGIC, at + _MAGIC_POSITION)
            if magic < 0:
                position += len(data) - _MAGIC_POSITION
                break
            at = magic - _MAGIC_POSITION
            if at + HEADER_SIZE > len(data):
                position += at  # at is not 0: a window is longer than a header
                break
            batch = _batch_at(pread, data, at, position, size)
            if batch is None:
                at += 1
                continue
            yield position + at, batch
            if batch.buffer is not data:
                position += at + batch.size
                break
            at += batch.size


def _batch_at(pread: Pread, data: bytes, at: int, position: int, size: int) -> RecordBatch | None:
    try:
        batch = RecordBatch(data, at)
    except Malformed:
        return None
    if not batch.is_whole:
        if batch.size > min(_MAX_BATCH_BYTES, size - position - at):
            return None
        batch = RecordBatch(pread(batch.size, position + at), 0)
    return batch if batch.crc_is_valid() else None


def read_undamaged(log: Log, offset: int, *, max_bytes: int, end_offset: int) -> bytes | None:
    """The bytes from the batch with `offset` on, as Log.read returns them; None if a damaged header prevents that.

    Blocking. Errors: KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE.
    """
    try:
        with log.disk_errors():
            return log.read(offset, max_bytes=max_bytes, end_offset=end_offset).read()
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None


class Found(NamedTuple):
    """Bytes that start with the next whole batch, and that batch's base offset.

    Shape  is_gap: no damaged bytes lie between; compaction leaves gaps in the offsets
    """

    base_offset: int
    data: bytes
    is_gap: bool = False


def read_behind_damage(log: Log, offset: int, *, max_bytes: int, end_offset: int) -> Found:
    """The next whole batch at or after `offset` and the bytes after it: at most `max_bytes`, or one batch.

    No bytes if the next batch is not below `end_offset`. Blocking. Errors: KAFKA_STORAGE_ERROR.
    """
    log_end_offset = log.log_end_offset
    is_gap = True
    for segment in log.segments.from_offset(offset):
        end = 0
        with log.disk_errors():
            file = segment.open().file
            for position, batch in valid_batches(file.pread, segment.size):
                # The checksum does not cover the base offset.
                if not segment.base_offset <= batch.base_offset < batch.next_offset <= log_end_offset:
                    continue
                is_gap = is_gap and position == end
                end = position + batch.size
                if batch.next_offset <= offset:
                    is_gap = True
                    continue
                if batch.next_offset > end_offset:
                    return Found(min(batch.base_offset, end_offset), b"", is_gap)
                return Found(batch.base_offset, file.pread(max(max_bytes, batch.size), position), is_gap)
        is_gap = is_gap and end == segment.size
    return Found(end_offset, b"", is_gap)
