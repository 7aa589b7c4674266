"""Which chunks are read ahead: `kbroker.tiered.read_ahead`."""

from __future__ import annotations

import io
import threading
from typing import Any, BinaryIO

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.env import RealThreads
from kbroker.tiered.api import RemoteStorageError
from kbroker.tiered.calls import read_whole
from kbroker.tiered.chunk_cache import UNREAD_MS, ChunkCache
from kbroker.tiered.chunk_memory import ChunkMemory
from kbroker.tiered.quota import ByteQuota
from kbroker.tiered.read_ahead import read_ahead
from tests.tiered.reading_site import SlowEnv, WatchedStorage
from tests.tiered.shelf import CHUNK, Shelf


def ahead(shelf: Shelf, number: int, *, count: int, segment: int = 0, last_segment: int = 0) -> None:
    """Read ahead of one chunk; the segments follow each other up to the last one."""
    segments = [shelf.segment(one) for one in range(last_segment + 1)]

    def following(of_segment: Any) -> Any:
        at = segments.index(of_segment) + 1
        return segments[at] if at < len(segments) else None

    read_ahead(shelf.cache, shelf.segment(segment), number, count=count, following=following)


def asked(shelf: Shelf) -> list[tuple[int, int]]:
    """(first chunk, bytes) of each request since the last call."""
    found = [(position // CHUNK, size) for _, position, size in shelf.storage.reads]
    shelf.storage.reads.clear()
    return found


async def asked_ahead(shelf: Shelf, number: int, **more: int) -> list[tuple[int, int]]:
    """The requests that the use of a chunk causes."""
    ahead(shelf, number, **more)
    await wait_all_tasks_blocked()
    return sorted(asked(shelf))


async def test_adjacent_chunks_are_requested_together(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=20)
    async with shelf.open():
        assert await asked_ahead(shelf, 0, count=4) == [(1, 4 * CHUNK)]
        assert await asked_ahead(shelf, 1, count=4) == [], (
            "three are cached, and a request for one costs as much as for two"
        )
        assert await asked_ahead(shelf, 2, count=4) == [(5, 2 * CHUNK)]
        for number in range(1, 7):
            assert await shelf.get(number) == shelf.bytes_of(number)
        assert asked(shelf) == []


async def test_reading_ahead_crosses_segment_boundaries(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=60)
    last = (shelf.segment().segment_size_in_bytes - 1) // CHUNK
    async with shelf.open():
        ahead(shelf, last - 2, count=4, last_segment=1)
        await wait_all_tasks_blocked()
        assert sorted(first for first, _ in asked(shelf)) == [0, last - 1]  # each by a thread of its own
        ahead(shelf, last - 2, count=6, segment=1, last_segment=1)
        await wait_all_tasks_blocked()
        assert [first for first, _ in asked(shelf)] == [last - 1]
        assert await asked_ahead(shelf, last - 1, count=6, segment=1, last_segment=1) == []
        for segment, number in ((0, last - 1), (0, last), (1, 0), (1, 1), (1, last - 1), (1, last)):
            assert await shelf.get(number, segment) == shelf.bytes_of(number, segment)
        assert asked(shelf) == []


async def test_the_very_last_chunk_is_read_ahead_alone(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=60)
    last = (shelf.segment().segment_size_in_bytes - 1) // CHUNK
    async with shelf.open():
        ahead(shelf, last - 1, count=6)
        await wait_all_tasks_blocked()
        assert [first for first, _ in asked(shelf)] == [last]


async def test_read_ahead_is_limited_by_memory(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=6)
    async with shelf.open():
        assert await asked_ahead(shelf, 0, count=6) == [(1, 3 * CHUNK)]
        assert shelf.cache.unread_bytes == shelf.cache.used_bytes == 3 * CHUNK


async def test_read_ahead_waits_for_memory_for_half_a_request(autojump_clock: MockClock) -> None:
    """Otherwise requests would get smaller with every additional consumer."""
    shelf = Shelf(chunks=16)
    async with shelf.open():
        ahead(shelf, 0, count=5)
        ahead(shelf, 0, count=5, segment=1, last_segment=1)
        await wait_all_tasks_blocked()
        assert sorted(asked(shelf)) == [(1, 3 * CHUNK), (1, 5 * CHUNK)]
        for number in (1, 2):
            await shelf.get(number)
        assert await asked_ahead(shelf, 3, count=5) == []
        assert [shelf.cache.make_room_ahead(count) for count in (2, 3)] == [True, False]
        await shelf.get(3)
        assert await asked_ahead(shelf, 3, count=5) == [(6, 3 * CHUNK)]


async def test_disconnected_consumers_do_not_block_read_ahead(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=8)
    async with shelf.open():
        assert await asked_ahead(shelf, 0, count=4) == [(1, 4 * CHUNK)]
        for seconds, read_ahead_now in ((0, []), (UNREAD_MS / 1000, []), (0.001, [(1, 4 * CHUNK)])):
            await trio.sleep(seconds)
            assert await asked_ahead(shelf, 0, count=4, segment=1, last_segment=1) == read_ahead_now, seconds
        assert await shelf.get(1) == shelf.bytes_of(1), "it is cached until its memory is needed"
        assert asked(shelf) == []
        assert shelf.cache.unread_bytes == 4 * CHUNK
        assert shelf.cache.used_bytes == 8 * CHUNK


async def test_chunks_that_arrived_before_a_failure_are_kept(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=20)
    half = 5 * CHUNK // 2
    shelf.storage.changes = [lambda data: data[:half], lambda data: data[: CHUNK // 2]]
    async with shelf.open():
        ahead(shelf, 0, count=4)
        with pytest.raises(RemoteStorageError, match="ended after"):
            await shelf.get(3)
        assert [first for first, _ in asked(shelf)] == [1, 3], "received chunks were not requested again"
        assert [shelf.cache.has(shelf.segment(), number) for number in range(1, 5)] == [True, True, False, False]
        assert (shelf.cache.used_bytes, shelf.cache.reading) == (2 * CHUNK, 0)
        for number in range(1, 5):
            assert await shelf.get(number) == shelf.bytes_of(number)


async def test_a_broken_request_continues_where_it_stopped(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=20)
    shelf.storage.changes = [lambda data: data[: 5 * CHUNK // 2]]
    async with shelf.open():
        assert await asked_ahead(shelf, 0, count=4) == [(1, 4 * CHUNK), (3, 2 * CHUNK)]
        for number in range(1, 5):
            assert await shelf.get(number) == shelf.bytes_of(number)
        assert asked(shelf) == []


async def test_a_chunk_is_available_before_the_request_ends() -> None:
    """Each chunk of a large request is available when it has arrived, and not only when all have."""
    shelf = Shelf(chunks=20)
    segment = shelf.segment()
    has_first, threads = threading.Event(), RealThreads(max_threads=1)

    class Halting(io.BytesIO):
        """Returns the second chunk only after a reader has received the first."""

        def readinto(self, buffer: Any) -> int:
            if self.tell():
                assert has_first.wait(10)
            return super().readinto(buffer)

    class HaltingStorage(WatchedStorage):
        def fetch_log_segment(self, metadata: Any, start_position: int, end_position: int | None = None) -> BinaryIO:
            with super().fetch_log_segment(metadata, start_position, end_position) as stream:
                return Halting(stream.read())

    class Env(SlowEnv):
        def threads(self, max_threads: int) -> Any:
            return threads

    storage = HaltingStorage(shelf.disk)
    storage.configure({"dir": "/tier"})
    shelf.cache = ChunkCache(
        Env(shelf.disk), shelf.settings, storage=storage, quota=ByteQuota(1 << 62, window_ms=1_000, now_ms=0)
    )
    async with shelf.open():
        assert shelf.cache.want_ahead(segment, range(1, 5))
        with trio.fail_after(10):
            assert await shelf.get(1) == shelf.bytes_of(1)
            assert not shelf.cache.has(segment, 4)
            has_first.set()
            for number in range(2, 5):
                assert await shelf.get(number) == shelf.bytes_of(number)


async def test_an_evicted_chunk_frees_its_memory_during_the_request() -> None:
    """Otherwise the next chunk is read into fresh memory, with a page fault for each page."""
    memory = ChunkMemory(CHUNK)
    shelf = Shelf(chunks=20)
    segment = shelf.segment()
    free: list[int] = []

    class Looking(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            free.append(memory.free_bytes)
            return super().readinto(buffer)

    class LookingStorage(WatchedStorage):
        def fetch_log_segment(self, metadata: Any, start_position: int, end_position: int | None = None) -> BinaryIO:
            with super().fetch_log_segment(metadata, start_position, end_position) as stream:
                return Looking(stream.read())

    storage = LookingStorage(shelf.disk)
    storage.configure({"dir": "/tier"})
    filled: list[int] = []
    read_whole(storage, segment, 0, [memory.take(CHUNK) for _ in range(3)], filled.append)
    assert filled == [0, 1, 2]
    assert free == [0, CHUNK, 2 * CHUNK]
