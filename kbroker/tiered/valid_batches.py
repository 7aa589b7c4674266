"""Batches among bytes that are damaged: each is found by its checksum, whatever bytes lie before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from wire.errors import Malformed
from wire.record_batch import HEADER_SIZE, RecordBatch

Pread: TypeAlias = Callable[[int, int], bytes]
"""So many bytes at a position; fewer only at the end."""

WINDOW_BYTES: Final = 1 << 20
_MAGIC: Final = b"\x02"
_MAGIC_POSITION: Final = 16
_MAX_BATCH_BYTES: Final = 64 << 20


def valid_batches(pread: Pread, size: int) -> Iterator[tuple[int, RecordBatch]]:
    """(position, batch) of every batch with a right checksum, whatever lies between them, in `size` bytes that `pread`
    gives.
    """
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
                position += at  # not 0: a window is longer than a header
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
