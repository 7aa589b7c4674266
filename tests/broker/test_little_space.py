"""Groups on a nearly full disk: consumers continue when producers are refused."""

from __future__ import annotations

import pytest
import trio

from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, produce, read
from tests.handlers.groups import beat, commit, find, form, join, offsets_of
from wire.errors import ErrorCode

MEGABYTE = 1 << 20
FLOORS = {"kbroker.min.free.bytes": 2 * MEGABYTE, "kbroker.groups.min.free.bytes": MEGABYTE // 2}


def leave_free(broker: MemoryBroker, size: int) -> None:
    """Let another file use all but `size` bytes."""
    disk = broker.disk
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes += size - disk.free_bytes("/data")


async def test_d9_groups_work_below_the_free_space_that_producers_need() -> None:
    async with memory_broker(settings=FLOORS) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await produce(client, "t", batch(b"a"))
        leave_free(broker, MEGABYTE)
        await trio.sleep(2)
        assert (await produce(client, "t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await find(client)
        joined = await form(client)
        assert (joined.error_code, await beat(client, joined)) == (0, 0)
        assert await read(client, "t") == [b"a"]
        assert await commit(client, {("t", 0): 1}, joined=joined) == {("t", 0): 0}
        assert await offsets_of(client) == {("t", 0): 1}


async def test_d9_groups_leave_space_for_the_tier_and_deletions() -> None:
    async with memory_broker(settings=FLOORS) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await find(client)
        leave_free(broker, MEGABYTE // 4)
        await trio.sleep(2)
        assert (await join(client)).error_code == ErrorCode.NOT_COORDINATOR
        assert await commit(client, {("t", 0): 1}) != {("t", 0): 0}


@pytest.mark.long
async def test_endless_commits_use_bounded_space_on_a_nearly_full_disk() -> None:
    async with memory_broker(settings=FLOORS) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await find(client)
        leave_free(broker, 2 * MEGABYTE - 1)
        await trio.sleep(2)
        lowest = 2 * MEGABYTE
        for number in range(12_000):
            assert await commit(client, {("t", 0): number}) == {("t", 0): 0}, number
            if number % 500 == 0:
                await trio.sleep(6)
                lowest = min(lowest, broker.disk.free_bytes("/data"))
        assert lowest > MEGABYTE
        assert await offsets_of(client) == {("t", 0): 11_999}
