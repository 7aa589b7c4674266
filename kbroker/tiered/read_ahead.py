"""Decides which chunks are read ahead for a consumer that reads sequentially, across segment boundaries.

A request costs the broker and the store the same whatever its size, so adjacent chunks are fetched together. Reading
ahead starts when half of the chunks ahead are missing and memory has room for that many, not after each used chunk.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.chunk_cache import ChunkCache


def read_ahead(
    cache: ChunkCache,
    segment: RemoteLogSegmentMetadata,
    number: int,
    *,
    count: int,
    following: Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata | None],
) -> None:
    """Request up to `count` chunks after the given one, as far as they exist and memory allows. `following` returns the
    next segment.
    """
    missing: list[tuple[RemoteLogSegmentMetadata, range]] = []
    count = min(count, cache.most_ahead)
    enough = -(-count // 2)
    for _ in range(count):
        number += 1
        if number * cache.chunk_bytes >= segment.segment_size_in_bytes:
            behind = following(segment)
            if behind is None:
                enough = 0  # there are no more chunks to batch with
                break
            segment, number = behind, 0
        if cache.knows(segment, number):
            continue
        if missing and missing[-1][0] is segment and missing[-1][1].stop == number:
            missing[-1] = (segment, range(missing[-1][1].start, number + 1))
        else:
            missing.append((segment, range(number, number + 1)))
    if sum(len(numbers) for _, numbers in missing) < enough or not cache.make_room_ahead(enough):
        return
    for of_segment, numbers in missing:
        if not cache.want_ahead(of_segment, numbers):
            return
