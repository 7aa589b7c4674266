"""Answers that are sent out of chunks: `kbroker.tiered.chunks` and what `kbroker.tiered.chunk_cache` makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.runtime.ports import Buffer
from kbroker.tiered.chunk_cache import ChunkCache
from tests.tiered.reading_site import ReadingSite, reader_settings
from tests.tiered.shelf import CHUNK, Shelf


async def lend(shelf: Shelf, number: int, segment: int = 0, *, start: int = 0, end: int = CHUNK) -> Buffer:
    """A piece of a chunk, as an answer has it: nobody uses the chunk any more."""
    with shelf.cache.reader(shelf.segment(segment)) as chunks:
        (given,) = chunks.lend([(await chunks.get(number))[start:end]])
    return given


def is_lent(cache: ChunkCache, piece: Buffer) -> bool:
    """Whether writing to it would be seen in the cache: told by its kind, since copies are of another."""
    return isinstance(piece, memoryview) and cache.lent_bytes > 0


async def test_an_answer_keeps_its_bytes_while_everything_else_is_read_over_and_over(autojump_clock: MockClock) -> None:
    """The memory of a chunk of which a piece is still being sent is never that of another one."""
    shelf = Shelf(chunks=4)
    async with shelf.open():
        kept = await lend(shelf, 0, start=100, end=600)
        assert is_lent(shelf.cache, kept)
        for number in (1, 2, 3, 4, 5, 6, 7, 8) * 3:
            assert await shelf.get(number) == shelf.bytes_of(number)
            assert shelf.cache.used_bytes <= 4 * CHUNK
        assert kept == shelf.bytes_of(0)[100:600]
        assert shelf.cache.has(shelf.segment(), 0), "it was used longest ago, and could not go"
        assert len(shelf.storage.reads) == 1 + 3 * 8


async def test_the_memory_of_an_answer_that_has_left_is_used_again(autojump_clock: MockClock) -> None:
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


async def test_slow_clients_have_half_of_the_memory_at_most_and_copies_beyond(autojump_clock: MockClock) -> None:
    shelf = Shelf(chunks=4)
    async with shelf.open():
        answers = [(number, await lend(shelf, number)) for number in range(9)]
        assert [isinstance(answer, memoryview) for _, answer in answers] == [True, True] + [False] * 7
        assert shelf.cache.lent_bytes == 2 * CHUNK
        assert shelf.cache.used_bytes <= 4 * CHUNK
        assert all(bytes(answer) == shelf.bytes_of(number) for number, answer in answers)
        # One more answer of a chunk that is lent already takes nothing.
        assert isinstance(await lend(shelf, 0), memoryview)


async def test_what_is_small_is_copied_and_does_not_hold_its_chunk(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with shelf.open():
        with shelf.cache.reader(shelf.segment()) as chunks:
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
async def test_who_waits_for_memory_gets_it_when_an_answer_has_left(
    call: Callable[[Callable[[], object]], None], autojump_clock: MockClock
) -> None:
    """Wherever that is: the collector of garbage, who may find one, runs in any thread."""
    shelf = Shelf(chunks=2)
    async with shelf.open(), trio.open_nursery() as nursery:
        answers = [await lend(shelf, 0)]
        with shelf.cache.reader(shelf.segment()) as chunks:
            await chunks.get(1)
            nursery.start_soon(shelf.get, 2)
            await wait_all_tasks_blocked()
            assert shelf.cache.waiting == 1
            call(answers.clear)
            await wait_all_tasks_blocked()
            assert shelf.cache.waiting == 0
            assert shelf.cache.has(shelf.segment(), 2)
        assert shelf.cache.lent_bytes == 0


async def test_a_damaged_chunk_counts_until_the_answer_with_a_piece_of_it_is_gone(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf(chunks=2)
    async with shelf.open():
        kept = await lend(shelf, 0)
        with shelf.cache.reader(shelf.segment()) as chunks:
            await chunks.get(0)
            chunks.drop(0)
            assert bytes(await chunks.get(0)) == bytes(kept) == shelf.bytes_of(0)
            assert shelf.cache.used_bytes == 2 * CHUNK
        del kept
        assert await shelf.get(1) == shelf.bytes_of(1)
        assert shelf.cache.has(shelf.segment(), 0), "there was room for both again"
        assert shelf.cache.used_bytes == 2 * CHUNK


async def test_an_answer_outlives_the_memory_that_a_setting_takes_away(autojump_clock: MockClock) -> None:
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
async def test_answers_that_never_leave_hold_no_more_than_half_and_keep_nobody_from_reading(
    chunks: int, autojump_clock: MockClock
) -> None:
    """Through the reader, over chunks' and segments' borders, with every answer held to the end."""
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
