"""Scan the batch headers of a log file without reading the records.

The log needs only the header of a batch (61 bytes), read as a named tuple directly from the bytes of the file.
`wire.record_batch` gives access to the records.

Source  Kafka's record batch, magic 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from kbroker.runtime.ports import Buffer, File
from wire.batch_header import (
    CONTROL_BIT,
    CRC_START,
    FRAME_SIZE,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL_BIT,
)

WritableBuffer: TypeAlias = bytearray | memoryview

SCAN_BYTES: Final = 16_384


class BatchHeader(NamedTuple):
    """The fields of a batch header in the order of the bytes."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + FRAME_SIZE

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; after 2^31-1 sequence numbers continue with 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF if self.base_sequence >= 0 else -1

    @property
    def is_plausible(self) -> bool:
        """Whether this can be a header; only the CRC shows whether the batch is intact."""
        return self.magic == MAGIC and self.batch_length >= HEADER_SIZE - FRAME_SIZE and self.last_offset_delta >= 0


def header_at(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error if the buffer ends inside it."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def headers_in(buffer: Buffer) -> Iterator[BatchHeader]:
    """The headers of adjacent whole batches in memory."""
    position, end = 0, len(buffer)
    while position < end:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        yield header
        position += header.batch_length + FRAME_SIZE


def scan_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = SCAN_BYTES, checks_crc: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch between two positions of a log file; `position` must be the start of a batch.

    Stops at bytes that cannot be a header, at a batch that ends after `end`, and with `checks_crc` at a batch with a
    wrong CRC. The caller sees from the last position and size whether the scan reached the end. Each read lets other
    threads run, so callers that share their process with the event loop read small chunks.

    Recovery, which reads millions of batches, has its own loop (`kbroker.storage.segment_recovery`).
    """
    unpack, make = HEADER.unpack_from, BatchHeader._make
    chunk, chunk_start = b"", position
    while position + HEADER_SIZE <= end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(chunk_bytes, end - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        # This loop runs for every batch of a segment, so it uses header fields by index.
        fields = unpack(chunk, at)
        size = fields[1] + FRAME_SIZE
        if fields[3] != MAGIC or size < HEADER_SIZE or fields[6] < 0 or position + size > end:
            return
        if checks_crc:
            if at + size > len(chunk):
                wanted = min(max(chunk_bytes, size), end - position)
                chunk, chunk_start, at = file.pread(wanted, position), position, 0
            if len(chunk) < at + size or crc32c(memoryview(chunk)[at + CRC_START : at + size]) != fields[4]:
                return
        yield position, make(fields)
        position += size
