"""T1: jumps of the wall clock do not move deadlines; only record timestamps are compared with the wall clock."""

from __future__ import annotations

import pytest
import trio

from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import (
    batch,
    create_topic,
    fetch_in_background,
    fetching,
    list_offset,
    parts,
    produce,
    values,
    wanted,
)
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = [HOUR_MS, -HOUR_MS, YEAR_MS, -YEAR_MS]


async def strobe(broker: MemoryBroker) -> None:
    """Move the wall clock forth and back every 200 ms."""
    step = 0
    while True:
        broker.env.wall_jump_ms = JUMPS[step % len(JUMPS)]
        step += 1
        await trio.sleep(0.2)


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_t1_a_clock_jump_neither_delays_nor_ends_a_waiting_fetch(jump_ms: int) -> None:
    async with memory_broker() as broker, trio.open_nursery() as nursery:
        client = await broker.connect()
        await create_topic(client, "t")
        waiting = fetching("t", wanted(), max_wait_ms=5_000)
        began = trio.current_time()
        answers = await fetch_in_background(nursery, broker, waiting)
        await trio.sleep(1)
        broker.env.wall_jump_ms = jump_ms
        await trio.sleep(10)
        assert [ended - began for ended, _ in answers] == [5.0]
        answers = await fetch_in_background(nursery, broker, waiting)
        broker.env.wall_jump_ms = 0
        await produce(client, "t", batch(b"v"))
        await trio.sleep(0.001)
        assert values(parts(answers[0][1])[0]) == [b"v"]


async def test_t1_a_strobing_clock_keeps_connections_sessions_and_leaders() -> None:
    settings = {"connections.max.idle.ms": 60_000}
    async with memory_broker(settings=settings) as broker, trio.open_nursery() as nursery:
        client, idle = await broker.connect(), await broker.connect()
        await create_topic(client, "t")
        partition = next(iter(broker.node.broker.replicas.partitions.values()))  # type: ignore[union-attr]
        epoch = partition.leader_epoch
        granted = await client.ask(fetching("t", wanted(), session=(0, 0)), version=12)
        assert granted.session_id
        nursery.start_soon(strobe, broker)
        for epoch_of_session in range(1, 25):
            await trio.sleep(2)
            answer = await client.ask(fetching("t", session=(granted.session_id, epoch_of_session)), version=12)
            assert answer.error_code == 0
        assert (partition.is_leader, partition.leader_epoch) == (True, epoch)
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        assert (await idle.ask(request)).error_code == 0, "48 s are below the idle timeout"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("settings", [{}, {"message.timestamp.after.max.ms": 2 * HOUR_MS}])
async def test_t1_a_record_too_far_ahead_of_this_clock_is_refused(
    broker: MemoryBroker, settings: dict[str, object]
) -> None:
    client = await broker.connect()
    await create_topic(client, "t", settings=settings)
    ahead_ms = 2 * HOUR_MS if settings else HOUR_MS
    edge = batch(b"v", timestamp=WALL_START_MS + ahead_ms)
    beyond = batch(b"v", timestamp=WALL_START_MS + ahead_ms + 1)
    assert (await produce(client, "t", beyond)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert (await produce(client, "t", edge)).error_code == 0
    broker.env.wall_jump_ms = -1
    assert (await produce(client, "t", edge)).error_code == ErrorCode.INVALID_TIMESTAMP
    broker.env.wall_jump_ms = -YEAR_MS
    assert (await produce(client, "t", batch(b"v"))).error_code == ErrorCode.INVALID_TIMESTAMP
    broker.env.wall_jump_ms = YEAR_MS
    assert (await produce(client, "t", beyond)).error_code == 0
    assert (await list_offset(client, "t", -1))[1] == 2


async def test_t1_idle_connections_are_closed_by_the_monotonic_clock() -> None:
    async with memory_broker(settings={"connections.max.idle.ms": 60_000}) as broker:
        client = await broker.connect()
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        await client.ask(request)
        broker.env.wall_jump_ms = YEAR_MS
        await trio.sleep(55)
        assert (await client.ask(request)).error_code == 0
        broker.env.wall_jump_ms = -YEAR_MS
        await trio.sleep(65)
        assert await client.stream.receive(1) == b""


async def test_t1_a_restart_under_another_clock_keeps_all_data() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"segment.ms": 1000})
        for _ in range(5):
            assert (await produce(client, "t", batch(b"v", timestamp=WALL_START_MS - YEAR_MS))).error_code == 0
            broker.env.wall_jump_ms -= HOUR_MS
    async with memory_broker(broker.disk) as again:
        client = await again.connect()
        assert (await list_offset(client, "t", -1))[1] == 5
        assert (await produce(client, "t", batch(b"v", timestamp=WALL_START_MS - YEAR_MS))).error_code == 0
