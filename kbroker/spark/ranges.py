"""The bytes of a remote segment from a position on, range by range, one range ahead of who takes them.

A range is one request to the store, and it is read to its end before anybody waits for a reader: no connection stays
open while Spark does something else. It comes in steps, since blocks of a MiB stay in the caches of a processor and in
the allocator's hands, where larger ones go back to the kernel each time.

Bound  two ranges: the one that is taken, and the one that is read meanwhile
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
    """The bytes from `start` to the segment's end, in blocks of STEP_BYTES at most.

    What is behind `expected_end` is read when somebody asks for it, not ahead.
    Errors  RemoteStorageError, the manager has tried again what may pass; RemoteObjectDamaged for an object that is
            shorter than its segment
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
                yield blocks.pop()  # and keep none that was taken


def _read(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int) -> list[bytes]:
    blocks: list[bytes] = []
    with closing(storage.fetch_log_segment(segment, start, end - 1)) as stream:
        at = start
        while at < end:
            block = stream.read(min(STEP_BYTES, end - at))
            if not block:
                raise RemoteObjectDamaged(f"the object ends at byte {at}, and its segment has {end} at least")
            blocks.append(block)
            at += len(block)
    return blocks
