"""The memory cache of chunks of remote segments: `kbroker.tiered.chunk_cache`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.chunk_cache import chunk_bytes_of
from kbroker.tiered.chunk_reader import ChunkReader
from tests.tiered.reading_site import reader_settings
from tests.tiered.shelf import CHUNK, Shelf


async def test_chunks_have_the_segments_bytes_and_the_last_is_shorter(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    size = shelf.segment().segment_size_in_bytes
    assert size % CHUNK
    async with shelf.open():
        for number in (*range(size // CHUNK + 1), *range(size // CHUNK + 1)):
            assert await shelf.get(number) == shelf.bytes_of(number)
            assert shelf.cache.used_bytes <= 4 * CHUNK


async def test_concurrent_requests_for_a_chunk_share_one_read(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    shelf.env.read_latency_ms = 100
    got: list[bytes] = []

    async def want() -> None:
        got.append(await shelf.get(2))

    async with shelf.open():
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(want)
        assert got == [shelf.bytes_of(2)] * 10
        assert len(shelf.storage.reads) == 1
        assert (shelf.cache.misses, shelf.cache.hits) == (1, 9)


async def test_chunks_are_read_in_parallel(autojump_clock: MockClock) -> None:
    """Sequential reads would make cold reads slow."""
    shelf = Shelf(chunks=10, remote_log_reader_threads=3)
    shelf.env.read_latency_ms = 100
    async with shelf.open():
        began = trio.current_time()
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            chunks.want_all(range(6))
            for number in range(6):
                assert bytes(await chunks.get(number)) == shelf.bytes_of(number)
        assert trio.current_time() - began == pytest.approx(0.2)
        assert shelf.env.most_running == 3


async def test_m4_a_read_is_completed_after_its_reader_has_gone(autojump_clock: MockClock) -> None:
    """KAFKA-15931: a cancelled reader does not interrupt the read, which would fail other readers."""
    shelf = Shelf()
    shelf.env.read_latency_ms = 1_000
    async with shelf.open():
        with trio.move_on_after(0.5) as scope:
            await shelf.get(1)
        assert scope.cancelled_caught
        assert not shelf.cache.has(shelf.segment(), 1)
        await trio.sleep(0.6)
        assert shelf.cache.has(shelf.segment(), 1)
        began = trio.current_time()
        assert await shelf.get(1) == shelf.bytes_of(1)
        assert trio.current_time() == began


@pytest.mark.parametrize("error", [RetriableRemoteStorageError("503"), RemoteStorageError("403"), ValueError("bug")])
async def test_an_error_reaches_all_waiters_and_is_not_cached(error: Exception, autojump_clock: MockClock) -> None:
    shelf = Shelf()
    shelf.env.read_latency_ms = 100
    shelf.storage.errors = [error]
    caught: list[Exception] = []

    async def fail() -> None:
        with pytest.raises(RemoteStorageError) as raised:
            await shelf.get(0)
        caught.append(raised.value)

    async with shelf.open():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)
        assert [isinstance(one, RetriableRemoteStorageError) for one in caught] == [
            isinstance(error, RetriableRemoteStorageError)
        ] * 2
        assert shelf.cache.used_bytes == 0
        assert await shelf.get(0) == shelf.bytes_of(0)


async def test_an_incomplete_chunk_is_not_cached(autojump_clock: MockClock) -> None:
    """Like Aiven's 017a8ae8: the cache served a file that was still being written."""
    shelf = Shelf()
    async with shelf.open():
        await shelf.get(1)
        shelf.storage.changes = [lambda data: data[:-1]] * 2
        with pytest.raises(RemoteStorageError, match="ended after"):
            await shelf.get(0)
        assert not shelf.cache.has(shelf.segment(), 0)
        assert await shelf.get(0) == shelf.bytes_of(0)
        assert shelf.storage.open_streams == 0


async def test_the_least_recently_used_chunk_is_evicted_first(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=3)
    async with shelf.open():
        for number in (0, 1, 2, 0, 3):
            await shelf.get(number)
        assert [number for number in range(4) if shelf.cache.has(shelf.segment(), number)] == [0, 2, 3]
        shelf.cache.pass_over(shelf.segment(), 3)
        await shelf.get(4)
        assert [number for number in range(5) if shelf.cache.has(shelf.segment(), number)] == [0, 2, 4]


async def test_a_chunk_in_use_is_not_evicted(autojump_clock: MockClock) -> None:
    """Like redpanda#7193: readers that evict each other's chunks never make progress."""
    shelf = Shelf(chunks=2)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as holder:
            await holder.get(0)
            await holder.get(1)
            with trio.move_on_after(60) as scope:
                await shelf.get(2)
            assert scope.cancelled_caught
            assert shelf.cache.used_bytes == 2 * CHUNK
        await wait_all_tasks_blocked()
        assert shelf.cache.has(shelf.segment(), 2), "the chunk was read once memory was free"
        assert shelf.cache.used_bytes <= 2 * CHUNK


async def test_a_reader_gets_one_more_chunk_for_a_started_batch(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as one, ChunkReader(shelf.cache, shelf.segment(1)) as other:
            await one.get(0)
            await other.get(0)
            assert bytes(await one.get(1, is_needed=True)) == shelf.bytes_of(1)
            assert bytes(await other.get(1, is_needed=True)) == shelf.bytes_of(1, 1)
            assert shelf.cache.used_bytes == 4 * CHUNK
        assert shelf.cache.used_bytes <= 2 * CHUNK


async def test_a_chunk_that_waits_for_memory_can_be_hurried(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=1)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            chunks.want_all(range(3))
            await chunks.get(0)
            assert chunks.at_hand(1) is None
            assert bytes(await chunks.get(1, is_needed=True)) == shelf.bytes_of(1)


async def test_the_number_of_chunks_waiting_for_memory_is_limited(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=1, remote_log_reader_max_pending_tasks=2)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            await chunks.get(0)
            chunks.want(1)
            chunks.want(2)
            with pytest.raises(RetriableRemoteStorageError, match="2 reads of the tier wait"):
                chunks.want(3)


async def test_everything_is_readable_without_cache_memory(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=0)
    async with shelf.open():
        for number in range(5):
            assert await shelf.get(number) == shelf.bytes_of(number)
            assert shelf.cache.used_bytes == 0


async def test_readers_get_an_error_when_the_system_has_no_memory(autojump_clock: MockClock) -> None:
    shelf, size = Shelf(), 1 << 60
    segment = replace(shelf.segment(), segment_size_in_bytes=2 * size)
    usual, huge = shelf.settings, replace(shelf.settings, kbroker_remote_chunk_bytes=size)
    errors: list[str] = []

    async def fail(number: int, *, is_needed: bool) -> None:
        with ChunkReader(shelf.cache, segment) as chunks:
            try:
                with trio.fail_after(60):
                    await chunks.get(number, is_needed=is_needed)
            except RetriableRemoteStorageError as error:
                errors.append(str(error))

    async with shelf.open():
        shelf.cache.reconfigure(replace(huge, kbroker_remote_chunk_cache_bytes=4 * size))
        assert not shelf.cache.want_ahead(segment, range(1))
        for _ in range(2):
            await fail(0, is_needed=False)
        shelf.cache.reconfigure(usual)
        async with trio.open_nursery() as nursery:
            with ChunkReader(shelf.cache, shelf.segment(1)) as holder:
                await holder.get(0)
                shelf.cache.reconfigure(huge)
                nursery.start_soon(partial(fail, 0, is_needed=False))
                nursery.start_soon(partial(fail, 1, is_needed=False))
                await wait_all_tasks_blocked()
                assert shelf.cache.waiting == 2
                await fail(1, is_needed=True)
                shelf.cache.reconfigure(replace(huge, kbroker_remote_chunk_cache_bytes=4 * size))
        assert len(errors) == 5
        assert all("there is no memory for" in one for one in errors)
        shelf.cache.reconfigure(usual)
        assert await shelf.get(0) == shelf.bytes_of(0)
        assert shelf.cache.used_bytes == 2 * CHUNK


async def test_unused_read_ahead_takes_at_most_half_of_the_memory(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=4)
    async with shelf.open():
        assert [shelf.cache.want_ahead(shelf.segment(), range(number, number + 1)) for number in range(4)] == [
            True,
            True,
            False,
            False,
        ]
        await wait_all_tasks_blocked()
        assert shelf.cache.unread_bytes == 2 * CHUNK
        await shelf.get(0)
        assert shelf.cache.want_ahead(shelf.segment(), range(2, 3))
        assert shelf.cache.read_ahead == 3
        assert await shelf.get(2) == shelf.bytes_of(2)


async def test_reading_ahead_takes_no_memory_from_waiting_readers(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            await chunks.get(0)
            await chunks.get(1)
            chunks.want(2)
            assert not shelf.cache.want_ahead(shelf.segment(), range(3, 4))


async def test_a_dropped_chunk_is_read_again_but_stays_valid(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as one, ChunkReader(shelf.cache, shelf.segment()) as other:
            kept = await other.get(0)
            await one.get(0)
            one.drop(0)
            assert not shelf.cache.has(shelf.segment(), 0)
            assert bytes(await one.get(0)) == bytes(kept) == shelf.bytes_of(0)
            assert len(shelf.storage.reads) == 2
            assert shelf.cache.used_bytes == 2 * CHUNK
        assert shelf.cache.used_bytes == CHUNK


async def test_a_quota_spreads_reads_over_time(autojump_clock: MockClock) -> None:
    """A piece may start while the budget is not overdrawn; the manager changes the rate."""
    shelf = Shelf(chunks=10, rate=CHUNK)
    async with shelf.open():
        began = trio.current_time()
        for number in range(7):
            await shelf.get(number)
        assert 4.9 <= trio.current_time() - began <= 6.1


async def test_changed_chunk_and_cache_sizes_apply_to_new_reads(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=8)
    async with shelf.open():
        for number in range(6):
            await shelf.get(number)
        changed = replace(
            shelf.settings, kbroker_remote_chunk_bytes=2 * CHUNK, kbroker_remote_chunk_cache_bytes=2 * CHUNK
        )
        shelf.cache.reconfigure(changed)
        assert shelf.cache.used_bytes == 2 * CHUNK
        assert await shelf.get(1) == shelf.bytes_of(2) + shelf.bytes_of(3)
        assert shelf.cache.used_bytes == 2 * CHUNK


async def test_waiters_get_an_error_when_the_cache_ends(autojump_clock: MockClock) -> None:
    shelf = Shelf(rate=1)
    scope = trio.CancelScope()

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await shelf.cache.run(task_status=task_status)

    async def wait() -> None:
        with pytest.raises(RetriableRemoteStorageError):
            await shelf.get(1)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await shelf.get(0)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.cancel()
    assert shelf.cache.used_bytes == CHUNK
    with pytest.raises(RetriableRemoteStorageError):
        await shelf.get(1)
    assert await shelf.get(0) == shelf.bytes_of(0), "a cached chunk stays available"


async def test_readers_waiting_for_memory_do_not_block_each_other(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    segments = [shelf.segment(0), shelf.segment(1)]
    given = [trio.Event(), trio.Event()]

    async def read(segment: int) -> None:
        with ChunkReader(shelf.cache, segments[segment]) as chunks:
            chunks.want_all(range(4, 6))
            assert bytes(await chunks.get(4)) == shelf.bytes_of(4, segment)
            given[segment].set()

    async with shelf.open(), trio.open_nursery() as nursery:
        with ChunkReader(shelf.cache, segments[0]) as one, ChunkReader(shelf.cache, segments[1]) as other:
            await one.get(5)
            await other.get(5)
            nursery.start_soon(read, 0)
            nursery.start_soon(read, 1)
            await wait_all_tasks_blocked()
            assert not any(one.is_set() for one in given)
        with trio.fail_after(10):
            for one_read in given:
                await one_read.wait()


async def test_all_chunks_waiting_for_memory_fail_at_the_end(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=1, remote_log_reader_max_pending_tasks=1_000)
    shelf.env.read_latency_ms = 1_000
    segments = [shelf.segment(number) for number in range(60)]
    given = refused = 0

    async def read(segment: RemoteLogSegmentMetadata, number: int) -> None:
        nonlocal given, refused
        with ChunkReader(shelf.cache, segment) as chunks:
            try:
                await chunks.get(number)
                given += 1
            except RetriableRemoteStorageError:
                refused += 1

    async with trio.open_nursery() as readers, shelf.open():
        for segment in segments:
            for number in range(9):
                readers.start_soon(read, segment, number)
        await wait_all_tasks_blocked()
    assert (given, refused) == (1, 539), "running reads are completed"
    assert shelf.cache.waiting == 0


@pytest.mark.parametrize(
    ("store", "chosen", "expected"),
    [(None, -1, 1 << 20), ("directory", -1, 1 << 20), ("minio", -1, 4 << 20), ("minio", 1 << 16, 1 << 16)],
)
def test_the_default_chunk_size_depends_on_the_store(store: str | None, chosen: int, expected: int) -> None:
    settings = reader_settings(remote_log_storage_manager_class_name=store, kbroker_remote_chunk_bytes=chosen)
    assert chunk_bytes_of(settings) == expected
