"""A failed read of the tier frees its memory at once, without the garbage collector."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.chunks import Chunk
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.remote_search import RemoteSearch
from tests.garbage import left_to_the_collector
from tests.tiered.reading_site import ReadingSite
from wire.errors import KafkaError

OF_READS = (memoryview, Chunk, RemoteIndexes)


def fail(site: ReadingSite, how: str) -> None:
    """Make every request to the store fail from now on."""
    if how == "down":
        site.watched.down = RetriableRemoteStorageError("503")
    else:
        site.watched.every_change = {"short": lambda data: data[:100], "damaged": lambda data: bytes(len(data))}[how]


async def failed_read(site: ReadingSite, offset: int) -> None:
    site.forget_chunks()
    with pytest.raises(KafkaError):
        await site.read(site.partitions["orders", 0], offset, 1_000)


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("how", ["down", "short", "damaged"])
async def test_a_failed_read_holds_no_memory(how: str, offset: int, autojump_clock: MockClock) -> None:
    """With and without a lookup in the index."""
    site = ReadingSite()
    async with site.reading():
        await site.tiered()
        fail(site, how)
        await failed_read(site, offset)
        with left_to_the_collector() as left:
            for _ in range(3):
                await failed_read(site, offset)
            await trio.sleep(1)
        assert [one for one in left if isinstance(one, OF_READS)] == []


async def test_a_failed_read_ahead_holds_no_memory(autojump_clock: MockClock) -> None:
    """No reader gets the error."""
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        fail(site, "short")
        segment = site.segments(partition)[0]
        assert site.reader.cache.want_ahead(segment, range(2))
        await trio.sleep(1)
        with left_to_the_collector() as left:
            assert site.reader.cache.want_ahead(segment, range(2))
            await trio.sleep(1)
        assert [one for one in left if isinstance(one, OF_READS)] == []


async def test_a_failed_search_holds_no_memory(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        search = RemoteSearch(site.reader, site.env, partition)

        async def failed_search() -> None:
            site.forget_chunks()
            with pytest.raises(RemoteStorageError, match="ended after"):
                await search.first_at_or_after(1)

        fail(site, "short")
        await failed_search()
        with left_to_the_collector() as left:
            await failed_search()
        assert [one for one in left if isinstance(one, OF_READS)] == []
