"""A chunk cache over a tier of its own, for tests of `kbroker.tiered.chunk_cache`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.chunk_reader import ChunkReader
from kbroker.tiered.quota import ByteQuota
from tests.tiered.reading_site import SlowEnv, WatchedStorage, reader_settings

CHUNK = 1_000


class Shelf:
    """A cache over a tier with segments of about ten chunks."""

    def __init__(self, *, chunks: int = 4, rate: int = 1 << 62, **settings: int) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory("/local")
        self.env = SlowEnv(self.disk)
        self.storage = WatchedStorage(self.disk)
        self.storage.configure({"dir": "/tier"})
        self.settings = reader_settings(
            kbroker_remote_chunk_bytes=CHUNK, kbroker_remote_chunk_cache_bytes=chunks * CHUNK, **settings
        )
        quota = ByteQuota(rate, window_ms=1_000, now_ms=self.env.now_ms())
        self.cache = ChunkCache(self.env, self.settings, storage=self.storage, quota=quota)
        self.segments: list[WrittenSegment] = []

    def segment(self, number: int = 0) -> RemoteLogSegmentMetadata:
        """One of the segments, created on first use."""
        while number >= len(self.segments):
            made = write_segment("/local", batches=25, disk=self.disk)
            self.storage.copy_log_segment_data(made.metadata, made.data)
            self.segments.append(made)
        return self.segments[number].finished

    def bytes_of(self, number: int, segment: int = 0) -> bytes:
        return self.segments[segment].log[number * CHUNK : (number + 1) * CHUNK]

    async def get(self, number: int, segment: int = 0) -> bytes:
        with ChunkReader(self.cache, self.segment(segment)) as chunks:
            return bytes(await chunks.get(number))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.cache.run)
            yield
            nursery.cancel_scope.cancel()
