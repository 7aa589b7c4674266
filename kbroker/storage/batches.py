"""Batch headers in a log file, one after the other, without reading what is between them.

The log needs of a batch only its header (61 bytes); `wire.record_batch` has the view for those who need records. A
header is read as a named tuple straight from the bytes of the file.

Source  Kafka's record batch, magic 2
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from kbroker.runtime.ports import Buffer, File

HEADER: Final = Struct(">qiiBIhiqqqhii")
HEADER_SIZE: Final = 61
FRAME_SIZE: Final = 12  # base_offset and batch_length, which batch_length does not count
CRC_START: Final = 21
MAGIC: Final = 2
NO_PRODUCER_ID: Final = -1
CONTROL_BIT: Final = 0x20
TRANSACTIONAL_BIT: Final = 0x10
LOG_APPEND_TIME_BIT: Final = 0x08

BASE_OFFSET: Final = Struct(">q")  # at 0; with the epoch, what the log writes into a batch
LEADER_EPOCH: Final = Struct(">i")  # at LEADER_EPOCH_POSITION
LEADER_EPOCH_POSITION: Final = 12
SCAN_BYTES: Final = 16_384


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in the order of the bytes."""

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
        """Sequence numbers run from 0 to 2^31-1 and start again at 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF if self.base_sequence >= 0 else -1

    @property
    def is_plausible(self) -> bool:
        """Whether this can be a header at all; the CRC says whether the batch is as it was written."""
        return self.magic == MAGIC and self.batch_length >= HEADER_SIZE - FRAME_SIZE and self.last_offset_delta >= 0


def header_at(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header that starts at `position`; struct.error if the buffer ends within it."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def headers_in(buffer: Buffer) -> Iterator[BatchHeader]:
    """The headers of whole batches that lie one after the other in memory."""
    position, end = 0, len(buffer)
    while position < end:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        yield header
        position += header.batch_length + FRAME_SIZE


def scan_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch between two positions of a log file, the first of which is a batch's start.

    Stops at bytes that cannot be a header and at a batch that is not whole before `end`: the caller sees from the last
    position and size whether the file was read to its end.
    """
    chunk, chunk_start = b"", position
    while position + HEADER_SIZE <= end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(chunk_bytes, end - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = BatchHeader._make(HEADER.unpack_from(chunk, at))
        if not header.is_plausible or position + header.size > end:
            return
        yield position, header
        position += header.size


def scan_valid_batches(file: File, end: int, *, chunk_bytes: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from the start of a log file whose CRC is right; stops at the first that is
    damaged.

    Each read lets other threads run, so a caller that shares its process reads small chunks. Recovery, which reads
    millions of batches, has a loop of its own (`kbroker.storage.segment_recovery`).
    """
    unpack, make = HEADER.unpack_from, BatchHeader._make
    position = chunk_start = 0
    chunk = memoryview(b"")
    expected_offset = -1
    while position + HEADER_SIZE <= end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = memoryview(file.pread(min(chunk_bytes, end - position), position)), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        # This loop runs for every batch of a segment: what it needs of the header it takes by place.
        fields = unpack(chunk, at)
        size = fields[1] + FRAME_SIZE
        if (
            fields[3] != MAGIC
            or size < HEADER_SIZE
            or fields[6] < 0
            or fields[0] < expected_offset
            or position + size > end
        ):
            return
        if at + size > len(chunk):
            wanted = min(max(chunk_bytes, size), end - position)
            chunk, chunk_start, at = memoryview(file.pread(wanted, position)), position, 0
            if len(chunk) < size:
                return
        if crc32c(chunk[at + CRC_START : at + size]) != fields[4]:
            return
        yield position, make(fields)
        position += size
        expected_offset = fields[0] + fields[6] + 1
