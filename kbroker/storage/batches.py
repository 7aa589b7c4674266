"""Scan the batch headers of a log file without reading the records.

The log needs only the header of a batch (61 bytes). `wire.record_batch` gives access to the records.

Source  Kafka's record batch, magic 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from kbroker.runtime.ports import File
from wire.batch_header import CRC_START, HEADER_SIZE, BatchHeader
from wire.crc32c import crc32c

WritableBuffer: TypeAlias = bytearray | memoryview

SCAN_BYTES: Final = 16_384


def scan_headers(
    file: File, position: int, end: int, *, chunk_bytes: int = SCAN_BYTES, checks_crc: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch between two positions of a log file; `position` must be the start of a batch.

    Stops at bytes that cannot be a header, at a batch that ends after `end`, and with `checks_crc` at a batch with a
    wrong CRC. The caller sees from the last position and size whether the scan reached the end. Each read lets other
    threads run, so callers that share their process with the event loop read small chunks.

    Recovery, which reads millions of batches, has its own loop (`kbroker.storage.segment_recovery`).
    """
    chunk, chunk_start = b"", position
    while position + HEADER_SIZE <= end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(chunk_bytes, end - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = BatchHeader(chunk, at)
        size = header.size
        if not header.is_plausible or position + size > end:
            return
        if checks_crc:
            if at + size > len(chunk):
                wanted = min(max(chunk_bytes, size), end - position)
                chunk, chunk_start, at = file.pread(wanted, position), position, 0
            if len(chunk) < at + size or crc32c(memoryview(chunk)[at + CRC_START : at + size]) != header.crc:
                return
        yield position, header
        position += size
