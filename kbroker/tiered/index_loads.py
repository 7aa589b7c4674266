"""Asynchronous loads of remote indexes: threads fetch them, concurrent requests for a segment share one load, and a
load is completed even if all its requesters have gone. The indexes are written to disk a little later.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

import trio

from kbroker.runtime.frames import without_frames
from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.indexes import RemoteIndexes

WRITE_DELAY_MS: Final = 1_000


class _Load:
    """A running load; error is the reason of a failure, once it has ended."""

    __slots__ = ("ended", "error", "found")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.found: RemoteIndexes | None = None
        self.error: RemoteStorageError | None = None


class IndexLoads:
    """See the module's docstring. Loads run as long as the chunk cache does."""

    def __init__(self, env: Env, indexes: RemoteIndexCache, cache: ChunkCache, *, max_threads: int) -> None:
        self._indexes = indexes
        self._cache = cache
        self._env = env
        self._threads = env.threads(max_threads)
        self._writes_soon = False
        self._loads: dict[tuple[UUID, bool], _Load] = {}

    def resize(self, max_threads: int) -> None:
        """Set the number of concurrent fetches."""
        self._threads.resize(max_threads)

    async def get(self, segment: RemoteLogSegmentMetadata, *, rebuild: bool = False) -> RemoteIndexes:
        """The indexes of a segment. With `rebuild` the known ones are wrong and are rebuilt from the segment.

        Errors  RemoteStorageError
        """
        segment_id = segment.remote_log_segment_id.id
        if not rebuild:
            found = self._indexes.resident(segment_id)
            if found is not None:
                return found
        load = self._loads.get((segment_id, rebuild))
        if load is None:
            load = _Load()
            self._cache.start_soon(partial(self._run, segment, load, rebuild=rebuild))
            self._loads[segment_id, rebuild] = load
        await load.ended.wait()
        if (error := load.error) is not None:
            try:
                raise error.with_traceback(None)
            finally:
                del load, error  # otherwise frame and error would refer to each other
        assert load.found is not None
        return load.found

    async def _run(self, segment: RemoteLogSegmentMetadata, load: _Load, *, rebuild: bool) -> None:
        load.error = RetriableRemoteStorageError("the tier's reader is not running")
        try:
            find = self._indexes.rebuild if rebuild else self._indexes.indexes
            load.found = await self._threads.run_blocking(find, segment)
            load.error = None
        except RemoteStorageError as error:
            load.error = without_frames(error)
        finally:
            del self._loads[segment.remote_log_segment_id.id, rebuild]
            load.ended.set()
        await self._write_down()

    async def _write_down(self) -> None:
        """Write fetched indexes after their requesters were served: these often want several, one by one."""
        if self._writes_soon:
            return
        self._writes_soon = True
        try:
            while self._indexes.has_unwritten:
                await self._env.sleep_ms(WRITE_DELAY_MS)
                await self._threads.run_blocking(self._indexes.write_down)
        finally:
            self._writes_soon = False
