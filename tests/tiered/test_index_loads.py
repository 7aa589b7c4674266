"""Asynchronous loads of indexes: `kbroker.tiered.index_loads`."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.env import RealThreads
from kbroker.runtime.ports import File
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.tiered import index_cache
from kbroker.tiered.api import IndexType, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.index_cache import DIRECTORY, RemoteIndexCache
from kbroker.tiered.index_loads import WRITE_DELAY_MS, IndexLoads
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.quota import ByteQuota
from tests.tiered.cached_indexes import LARGE, World, id_of, is_right
from tests.tiered.reading_site import SlowEnv, reader_settings


class HaltingDisk(SimulatedDisk):
    """Blocks the creation of files in the index cache until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create and DIRECTORY in path:
            assert self.may_write.wait(10)
        return super().open(path, create=create, writable=writable)


class ThreadedEnv(SlowEnv):
    def threads(self, max_threads: int) -> Any:
        return RealThreads(max_threads=max_threads)


def loads_of(world: World) -> tuple[IndexLoads, ChunkCache]:
    env = ThreadedEnv(world.disk)
    quota = ByteQuota(1 << 62, window_ms=1_000, now_ms=0)
    cache = ChunkCache(env, reader_settings(), storage=world.store, quota=quota)
    return IndexLoads(env, world.cache, cache, max_threads=2), cache


async def test_indexes_are_returned_before_they_are_written() -> None:
    disk = HaltingDisk()
    world = World(disk)
    loads, cache = loads_of(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        with trio.fail_after(10):
            for _ in range(2):
                assert is_right(await loads.get(world.segments[0].finished), world.segments[0])
            assert len(world.cache) == 0
            disk.may_write.set()
            await trio.to_thread.run_sync(world.cache.write_down)
            assert len(world.cache) == 1
        assert is_right(await loads.get(world.segments[0].finished), world.segments[0])
        assert sum(world.store.asked.values()) == 2, "the offsets and the times, once"
        nursery.cancel_scope.cancel()
    assert world.files() == world.names(0)


async def test_indexes_are_returned_even_if_they_cannot_be_written() -> None:
    world = World(segments=2)
    world.disk.inject(Fault(errno.ENOSPC, name="write", path=f"*/{DIRECTORY}/*"))
    loads, cache = loads_of(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        with trio.fail_after(10):
            assert is_right(await loads.get(world.segments[0].finished), world.segments[0])
            world.store.unwell = RetriableRemoteStorageError("503")
            with pytest.raises(RemoteStorageError, match="503"):
                await loads.get(world.segments[1].finished)
            world.store.unwell = None
            assert is_right(await loads.get(world.segments[1].finished), world.segments[1])
        nursery.cancel_scope.cancel()


async def test_indexes_are_written_later_and_stay_in_memory(autojump_clock: MockClock) -> None:
    world = World(segments=3)
    env = SlowEnv(world.disk)
    chunks = ChunkCache(env, reader_settings(), storage=world.store, quota=ByteQuota(1 << 62, window_ms=1, now_ms=0))
    loads = IndexLoads(env, world.cache, chunks, max_threads=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(chunks.run)
        for number in (0, 1):
            assert is_right(await loads.get(world.segments[number].finished), world.segments[number])
        await trio.sleep(WRITE_DELAY_MS / 2000)
        assert await loads.get(world.segments[2].finished)
        assert world.files() == []
        await trio.sleep(WRITE_DELAY_MS / 1000)
        assert world.files() == world.names(0, 1, 2)
        assert not world.cache.has_unwritten
        assert all(world.cache.resident(each.metadata.remote_log_segment_id.id) for each in world.segments)
        nursery.cancel_scope.cancel()


async def test_concurrent_requests_share_one_fetch() -> None:
    world = World()
    loads, cache = loads_of(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        answers: list[RemoteIndexes] = []

        async def ask() -> None:
            answers.append(await loads.get(world.segments[0].finished))

        async with trio.open_nursery() as asking:
            for _ in range(8):
                asking.start_soon(ask)
        assert len(answers) == 8
        assert all(is_right(answer, world.segments[0]) for answer in answers)
        assert world.store.asked[IndexType.OFFSET] == 1
        nursery.cancel_scope.cancel()


async def test_a_failed_fetch_fails_all_waiters_and_is_not_cached() -> None:
    world = World()
    world.store.gate.clear()
    world.store.unwell = RetriableRemoteStorageError("503")
    loads, cache = loads_of(world)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)

        async def ask() -> None:
            with pytest.raises(RetriableRemoteStorageError, match="503"):
                await loads.get(world.segments[0].finished)

        async with trio.open_nursery() as asking:
            for _ in range(4):
                asking.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            world.store.gate.set()
        assert world.store.asked[IndexType.OFFSET] == 1
        world.store.unwell = None
        assert is_right(await loads.get(world.segments[0].finished), world.segments[0])
        nursery.cancel_scope.cancel()


async def test_an_eviction_never_removes_files_of_the_next_load(tmp_path: Path) -> None:
    """KAFKA-15481: the files of an evicted entry were deleted after the same segment had been fetched again."""
    world = World(segments=3, batches=20)
    (tmp_path / "data").mkdir()
    world.cache = RemoteIndexCache(
        str(tmp_path / "data"), world.store, disk=RealDisk(), now_ms=lambda: 0, max_bytes=LARGE, resident_bytes=0
    )
    world.ask()
    world.cache.resize(world.cache.size_bytes + 20)  # there is room for one of the three
    loads, cache = loads_of(world)

    async def hammer(seed: int) -> None:
        for turn in range(60):
            segment = world.segments[(seed + turn * (1 + seed % 2)) % 3]
            assert is_right(await loads.get(segment.finished), segment)
            await trio.to_thread.run_sync(world.cache.write_down)

    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        async with trio.open_nursery() as hammering:
            for seed in range(4):
                hammering.start_soon(hammer, seed)
        nursery.cancel_scope.cancel()
    assert world.cache.counters.evicted > 10
    assert world.cache.counters.damaged == 0
    assert len(world.cache) == 1
    names = sorted(RealDisk().list(world.cache.directory))
    (kept,) = (number for number in range(3) if world.names(number) == names)
    fetches = world.cache.counters.fetched
    assert is_right(world.ask(kept), world.segments[kept])
    assert world.cache.counters.fetched == fetches


def test_indexes_of_a_removed_segment_are_not_written() -> None:
    world = World(segments=2)
    for segment in world.segments:
        world.cache.indexes(segment.finished)
    world.cache.remove(id_of(world.segments[0]))
    world.cache.write_down()
    assert world.files() == world.names(1)


def test_indexes_removed_while_they_are_written_leave_no_files() -> None:
    world = World(segments=2)
    for segment in world.segments:
        world.cache.indexes(segment.finished)
    removing = threading.Thread(target=world.cache.remove, args=[id_of(world.segments[0])])

    def remove(operation: Operation) -> None:
        if operation.name == "write":
            world.disk.observer = None
            removing.start()

    world.disk.observer = remove
    world.cache.write_down()
    removing.join()
    assert world.files() == world.names(1)
    assert world.cache.resident(id_of(world.segments[0])) is None
    assert not world.cache.has_unwritten


def test_large_indexes_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(index_cache, "UNWRITTEN_BYTES", 1)
    world.cache.indexes(world.segments[0].finished)
    assert world.files() == world.names(0)
    assert not world.cache.has_unwritten
