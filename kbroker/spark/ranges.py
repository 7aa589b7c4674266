"""Reads a remote segment range by range, one range ahead of the caller.

Each range is one request to the store and is read completely before the caller gets its first block, so no connection
stays open while Spark does something else. Bytes are read in blocks of 1 MiB: these stay in the processor's caches and
are reused by the allocator, whereas larger blocks are returned to the kernel each time.

Bound  two ranges: the one that the caller consumes, and the one that is read ahead
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteObjectDamaged,
    RemoteStorageManager,
)

STEP_BYTES: Final = 1 << 20


def read_ranges(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    expected_end: int | None,
    *,
    chunk_bytes: int,
) -> Generator[bytes]:
    """The bytes from `start` to the segment's end, in blocks of at most STEP_BYTES.

    Bytes after `expected_end` are not read ahead.
    Errors  RemoteStorageError after the manager's retries; RemoteObjectDamaged for an object that is shorter than its
            segment
    """
    size = segment.segment_size_in_bytes
    expected = size if expected_end is None else min(max(expected_end, start), size)
    bounds = []
    for low, high in ((start, expected), (expected, size)):
        bounds += [(at, min(at + chunk_bytes, high)) for at in range(low, high, chunk_bytes)]
    with ThreadPoolExecutor(1, thread_name_prefix="kbroker-ahead") as pool:
        ahead = None
        for index, (at, end) in enumerate(bounds):
            blocks = _read(storage, segment, at, end) if ahead is None else ahead.result()
            ahead = None
            if index + 1 < len(bounds) and bounds[index + 1][1] <= expected:
                ahead = pool.submit(_read, storage, segment, *bounds[index + 1])
            blocks.reverse()
            while blocks:
                yield blocks.pop()  # frees the block when the caller is done


def _read(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int) -> list[bytes]:
    blocks: list[bytes] = []
    with closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
        at = start
        while at < end:
            block = stream.read(min(STEP_BYTES, end - at))
            if not block:
                raise RemoteObjectDamaged(f"the object ends at byte {at}, but its segment has at least {end} bytes")
            blocks.append(block)
            at += len(block)
    return blocks
