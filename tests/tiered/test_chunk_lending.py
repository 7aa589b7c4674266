"""Answers that are sent directly from chunks: `kbroker.tiered.chunks` with `kbroker.tiered.chunk_cache`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.ports import Buffer
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.chunk_reader import ChunkReader
from tests.tiered.reading_site import ReadingSite, reader_settings
from tests.tiered.shelf import CHUNK, Shelf


async def lend(shelf: Shelf, number: int, segment: int = 0, *, start: int = 0, end: int = CHUNK) -> Buffer:
    """A part of a chunk, lent to an answer; the chunk has no users any more."""
    with ChunkReader(shelf.cache, shelf.segment(segment)) as chunks:
        (given,) = chunks.lend([(await chunks.get(number))[start:end]])
    return given


def is_lent(cache: ChunkCache, piece: Buffer) -> bool:
    """Whether the buffer is a view of the cache; copies are of another type."""
    return isinstance(piece, memoryview) and cache.lent_bytes > 0


async def test_an_answer_keeps_its_bytes_while_other_chunks_are_read(autojump_clock: MockClock) -> None:
    """While a part of a chunk is being sent, its memory is not reused."""
    shelf = Shelf(chunks=4)
    async with shelf.open():
        kept = await lend(shelf, 0, start=100, end=600)
        assert is_lent(shelf.cache, kept)
        for number in (1, 2, 3, 4, 5, 6, 7, 8) * 3:
            assert await shelf.get(number) == shelf.bytes_of(number)
            assert shelf.cache.used_bytes <= 4 * CHUNK
        assert kept == shelf.bytes_of(0)[100:600]
        assert shelf.cache.has(shelf.segment(), 0), "it is the least recently used, but lent"
        assert len(shelf.storage.reads) == 1 + 3 * 8


async def test_the_memory_of_a_sent_answer_is_reused(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        kept = await lend(shelf, 0)
        assert shelf.cache.lent_bytes == CHUNK
        del kept
        for number in (1, 2):
            await shelf.get(number)
        assert shelf.cache.lent_bytes == 0
        assert not shelf.cache.has(shelf.segment(), 0)
        assert shelf.cache.used_bytes == 2 * CHUNK


async def test_slow_clients_hold_at_most_half_of_the_memory(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=4)
    async with shelf.open():
        answers = [(number, await lend(shelf, number)) for number in range(9)]
        assert [isinstance(answer, memoryview) for _, answer in answers] == [True, True] + [False] * 7
        assert shelf.cache.lent_bytes == 2 * CHUNK
        assert shelf.cache.used_bytes <= 4 * CHUNK
        assert all(bytes(answer) == shelf.bytes_of(number) for number, answer in answers)
        # Another answer from a chunk that is already lent takes no more memory.
        assert isinstance(await lend(shelf, 0), memoryview)


async def test_small_parts_are_copied_and_do_not_hold_their_chunk(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with shelf.open():
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            chunk = await chunks.get(0)
            given = chunks.lend(
                [chunk[:100], chunk[200:310], chunk[400:700], memoryview(b"of no chunk"), chunk[900:910]]
            )
        assert [bytes(piece) for piece in given] == [
            shelf.bytes_of(0)[:100] + shelf.bytes_of(0)[200:310],
            shelf.bytes_of(0)[400:700],
            b"of no chunk",
            shelf.bytes_of(0)[900:910],
        ]
        assert [isinstance(piece, bytearray) for piece in given] == [True, False, False, True]


def in_another_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("call", [lambda function: function(), in_another_thread], ids=["here", "in a thread"])
async def test_a_waiting_reader_gets_the_memory_of_a_sent_answer(
    call: Callable[[Callable[[], object]], None], autojump_clock: MockClock
) -> None:
    """In any thread: the garbage collector, which may end a loan, runs in any thread."""
    shelf = Shelf(chunks=2)
    async with shelf.open(), trio.open_nursery() as nursery:
        answers = [await lend(shelf, 0)]
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            await chunks.get(1)
            nursery.start_soon(shelf.get, 2)
            await wait_all_tasks_blocked()
            assert shelf.cache.waiting == 1
            call(answers.clear)
            await wait_all_tasks_blocked()
            assert shelf.cache.waiting == 0
            assert shelf.cache.has(shelf.segment(), 2)
        assert shelf.cache.lent_bytes == 0


async def test_a_dropped_chunk_counts_until_its_loans_end(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        kept = await lend(shelf, 0)
        with ChunkReader(shelf.cache, shelf.segment()) as chunks:
            await chunks.get(0)
            chunks.drop(0)
            assert bytes(await chunks.get(0)) == bytes(kept) == shelf.bytes_of(0)
            assert shelf.cache.used_bytes == 2 * CHUNK
        del kept
        assert await shelf.get(1) == shelf.bytes_of(1)
        assert shelf.cache.has(shelf.segment(), 0), "memory was free for both"
        assert shelf.cache.used_bytes == 2 * CHUNK


async def test_an_answer_stays_valid_when_the_cache_shrinks(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=4)
    async with shelf.open():
        kept = await lend(shelf, 0)
        shelf.cache.reconfigure(
            replace(shelf.settings, kbroker_remote_chunk_bytes=2 * CHUNK, kbroker_remote_chunk_cache_bytes=0)
        )
        for number in range(4):
            size = 2 * CHUNK
            assert await shelf.get(number) == shelf.segments[0].log[number * size : (number + 1) * size]
        assert kept == shelf.bytes_of(0)


@pytest.mark.parametrize("chunks", [2, 3, 8])
async def test_stuck_answers_hold_at_most_half_and_block_no_reader(chunks: int, autojump_clock: MockClock) -> None:
    """Through the reader, across boundaries of chunks and segments, with every answer held to the end."""
    size = 1_024
    site = ReadingSite(
        tier=reader_settings(kbroker_remote_chunk_bytes=size, kbroker_remote_chunk_cache_bytes=chunks * size)
    )
    async with site.reading():
        partition = await site.tiered(count=60)
        held, offset, cache = [], 0, site.reader.cache
        while offset < partition.log.local_log_start_offset:
            with trio.fail_after(60):
                found = await site.read(partition, offset, 700)
            held.append(found.records)
            offset = found.next_offset
            assert cache.lent_bytes <= chunks * size // 2
            assert cache.used_bytes <= (chunks + 1) * size
        assert cache.lent_bytes > 0, "some were lent"
        assert b"".join(map(bytes, held)) == site.expected(partition, 0)
        del held, found
        assert await site.read_all(partition, 0) == site.expected(partition, 0)
        assert cache.lent_bytes == 0
