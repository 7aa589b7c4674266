"""A site (see tier_site.py) for reading: with a reader, a tier that can be slow or wrong, and the whole log of what was
written for comparison.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar, TypeVarTuple

import trio

from kbroker.config.tier_settings import TierSettings
from kbroker.replication.partition import Partition
from kbroker.runtime.ports import Disk
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv, MemoryThreads
from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.remote_read import RemoteRead, RemoteReader
from tests.tiered.tier_site import FaultyStorage, Site, settings
from wire.record_batch import batches
from wire.types import uuid_to_text

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

CHUNK = 256
Change = Callable[[bytes], bytes]


def reader_settings(**given: Any) -> TierSettings:
    """Small chunks, so that batches span their boundaries."""
    chosen: dict[str, Any] = {"kbroker_remote_chunk_bytes": CHUNK, "kbroker_remote_chunk_cache_bytes": 1 << 20}
    return settings(**{**chosen, **given})


class WatchedStorage(FaultyStorage):
    """A tier that records its reads and lets a test change their results.

    Shape  reads are (start offset of the segment, position, bytes); index_reads the start offsets and kinds; each of
           `changes` is applied to the result of one read, in order, None leaves it; errors are raised first;
           transactions are the transaction indexes of segments by their start offset
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.reads: list[tuple[int, int, int]] = []
        self.index_reads: list[tuple[int, IndexType]] = []
        self.changes: list[Change | None] = []
        self.every_change: Change | None = None
        self.errors: list[Exception | None] = []
        self.index_changes: dict[IndexType, Change] = {}
        self.transactions: dict[int, bytes] = {}
        self.open_streams = 0

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        if self.down is not None:
            raise self.down
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        with super().fetch_log_segment(metadata, start_position, end_position) as stream:
            data = stream.read()
        self.reads.append((metadata.start_offset, start_position, len(data)))
        change = self.changes.pop(0) if self.changes else self.every_change
        return _Stream(self, data if change is None else change(data))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        if self.down is not None:
            raise self.down
        self.index_reads.append((metadata.start_offset, index_type))
        if index_type is IndexType.TRANSACTION and metadata.start_offset in self.transactions:
            return self.transactions[metadata.start_offset]
        # Another object wrote the tier, so FaultyStorage would take it for empty.
        data = LocalRemoteStorage.fetch_index(self, metadata, index_type)
        change = self.index_changes.get(index_type)
        return data if change is None else change(data)


class _Stream(io.BytesIO):
    def __init__(self, storage: WatchedStorage, data: bytes) -> None:
        super().__init__(data)
        self._storage = storage
        storage.open_streams += 1

    def close(self) -> None:
        if not self.closed:
            self._storage.open_streams -= 1
        super().close()


class SlowThreads(MemoryThreads):
    """Threads in which each call takes the environment's latency at its start."""

    def __init__(self, env: SlowEnv, max_threads: int) -> None:
        super().__init__(env, max_threads)
        self._slow = env

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        async with self._limiter:
            self._slow.running += 1
            self._slow.most_running = max(self._slow.most_running, self._slow.running)
            try:
                with trio.CancelScope(shield=True):  # a thread cannot be stopped
                    await trio.sleep(self._slow.read_latency_ms / 1000)
                return function(*arguments)
            finally:
                self._slow.running -= 1


class SlowEnv(MemoryEnv):
    """Virtual time; reads from the tier take read_latency_ms."""

    read_latency_ms = 0
    running = 0
    most_running = 0

    def threads(self, max_threads: int) -> SlowThreads:
        return SlowThreads(self, max_threads)


class ReadingSite(Site):
    """See the module's docstring. `fill` copies the closed segments of a partition before it returns."""

    def __init__(self, disk: Disk | None = None, *, tier: TierSettings | None = None, **given: Any) -> None:
        super().__init__(disk, tier=tier or reader_settings(), **given)
        self.watched = WatchedStorage(self.disk)
        self.watched.configure({"dir": "/tier", "log.dir": "/data"})
        self.slow = SlowEnv(self.disk)
        self.indexes = RemoteIndexCache(
            "/data", self.watched, disk=self.disk, now_ms=self.env.now_ms, max_bytes=1 << 20
        )
        self.reader = RemoteReader(
            self.slow,
            self.tier,
            storage=self.watched,
            metadata=self.metadata,
            indexes=self.indexes,
            quota=self.manager.fetch_quota,
        )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Run manager, metadata and reader."""
        async with self.at_work(), trio.open_nursery() as nursery:
            await nursery.start(self.reader.cache.run)
            yield
            nursery.cancel_scope.cancel()

    async def tiered(self, *, count: int = 40, sizes: tuple[int, ...] = (100,), **config: Any) -> Partition:
        """A partition with this number of batches; its closed segments are only in the tier."""
        partition = self.add(**config)
        await self.changed()
        for number in range(count):
            self.append(partition, 1, size=sizes[number % len(sizes)])
        await self.rounds(2)
        await self.retain(partition)
        assert partition.log.local_log_start_offset > 0
        return partition

    def expected(self, partition: Partition, offset: int) -> bytes:
        """All written data from the batch that contains an offset up to the local log."""
        end = partition.log.local_log_start_offset
        return b"".join(
            data
            for base, data in sorted(self.written[partition.key].items())
            if base < end and next(iter(batches(data))).last_offset >= offset
        )

    async def read(self, partition: Partition, offset: int, max_bytes: int = 1 << 20, **given: Any) -> RemoteRead:
        return await self.reader.read(partition, offset, max_bytes=max_bytes, **{"at_least_one_batch": True, **given})

    async def read_all(self, partition: Partition, offset: int, max_bytes: int = 1 << 20) -> bytes:
        """Read like a consumer, up to the local log."""
        found = b""
        while offset < partition.log.local_log_start_offset:
            got = await self.read(partition, offset, max_bytes)
            assert got.next_offset > offset, f"nothing at {offset}"
            found += bytes(got.records)
            offset = got.next_offset
        return found

    async def read_all_up_to(self, partition: Partition, offset: int, end_offset: int) -> bytes:
        """Read like a consumer, while batches end at or before an offset."""
        found = b""
        while offset < end_offset:
            got = await self.read(partition, offset)
            assert offset < got.next_offset <= end_offset
            found += bytes(got.records)
            offset = got.next_offset
        return found

    def move_objects(self, old: RemoteLogSegmentMetadata, new: RemoteLogSegmentMetadata) -> None:
        """Store the objects of one segment under the id of another."""
        old_id, new_id = (uuid_to_text(one.remote_log_segment_id.id) for one in (old, new))
        assert isinstance(self.disk, SimulatedDisk)
        for path in self.disk.image("/tier"):
            if old_id in path:
                self.disk.rename(path, path.replace(old_id, new_id))

    def forget_chunks(self) -> None:
        """Empty the chunk cache."""
        self.reader.cache.reconfigure(replace(self.tier, kbroker_remote_chunk_cache_bytes=0))
        self.reader.cache.reconfigure(self.tier)
