"""A reader's access to the chunks of one segment: see `kbroker.tiered.chunk_cache`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from kbroker.runtime.ports import Buffer
from kbroker.tiered.api import RemoteLogSegmentMetadata, RetriableRemoteStorageError
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.chunks import Chunk


class ChunkReader:
    """The chunks of one segment that a reader has in use: a context manager, which releases them at its end."""

    __slots__ = ("_cache", "_held", "chunk_bytes", "segment")

    def __init__(self, cache: ChunkCache, segment: RemoteLogSegmentMetadata) -> None:
        self.chunk_bytes = cache.chunk_bytes
        self._cache = cache
        self.segment = segment
        self._held: dict[int, Chunk] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in tuple(self._held):
            self._release(number)

    def want(self, number: int, *, is_needed: bool = False) -> Chunk:
        """A chunk; if it is missing, the cache starts to read it. With `is_needed` it does not wait for memory.

        Errors  RetriableRemoteStorageError (too many chunks wait already, or the cache does not run)
        """
        chunk = self._held.get(number)
        if chunk is None:
            chunk = self._cache.want(self.segment, number, self.chunk_bytes)
            chunk.users += 1
            self._held[number] = chunk
        if is_needed:
            self._cache.hurry(chunk)
        return chunk

    def want_all(self, numbers: range) -> None:
        """Request chunks that are read in parallel: the first one, and as many of the others as memory allows.

        A reader that waits for memory holds no chunk; otherwise two readers could block each other.
        Errors  RetriableRemoteStorageError (too many chunks wait already, or the cache does not run)
        """
        if self.want(numbers[0]).waits_for_memory:
            return
        with suppress(RetriableRemoteStorageError):
            for number in numbers[1:]:
                self.want(number)

    def at_hand(self, number: int) -> memoryview | None:
        """A requested chunk if it is in memory."""
        chunk = self._held.get(number)
        return None if chunk is None else chunk.data

    async def get(self, number: int, *, is_needed: bool = False) -> memoryview:
        """Wait for a chunk. Errors: RemoteStorageError."""
        chunk = self.want(number, is_needed=is_needed)
        if chunk.data is None:
            await chunk.ready.wait()
            if (error := chunk.error) is not None:
                self._release(number)
                try:
                    raise error.with_traceback(None)
                finally:
                    del chunk, error  # otherwise frame and error would refer to each other
        assert chunk.data is not None
        return chunk.data

    def lend(self, pieces: Sequence[Buffer]) -> list[Buffer]:
        """The same bytes for an answer; they stay valid after the reader has released its chunks."""
        return self._cache.lend(self._held.values(), pieces)

    def drop(self, number: int) -> None:
        """Drop a damaged chunk, so that the next request reads it again."""
        chunk = self._held.get(number)
        if chunk is not None:
            self._cache.drop(chunk)
            self._release(number)

    def _release(self, number: int) -> None:
        chunk = self._held.pop(number)
        chunk.users -= 1
        self._cache.on_release(chunk)
