"""The memory budgets of a node, on virtual time: bounds on the memory that many clients together can use."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio
from trio.testing import MockClock

from kbroker.client.streaming import ConnectionClosed
from kbroker.runtime.net_ports import Stream
from kbroker.server.connection import Connection
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import NAMED, batch, create_topic, produce, producing
from wire.compression import Codec
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.describe_groups import DescribeGroupsRequest

MIB = 1 << 20


def connections(broker: MemoryBroker) -> list[Connection]:
    assert broker.node.server is not None
    return list(broker.node.server.connections)


async def begin_request(stream: Stream, announced: int, size: int) -> None:
    """Send the first `size` bytes of a Produce, as long as the broker accepts them."""
    head = announced.to_bytes(4, "big") + bytes.fromhex("0000 0007 00000001 ffff")
    with suppress(trio.BrokenResourceError):
        await stream.send([head + bytes(size)])


async def test_w6_partial_requests_stay_within_their_budget(autojump_clock: MockClock) -> None:
    async with memory_broker(settings={"queued.max.request.bytes": 8 * MIB}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                hog = await broker.connect()
                nursery.start_soon(begin_request, hog.stream, 50 * MIB, 10 * MIB)
            await trio.sleep(1)
            held = sum(connection.frames.pending_bytes for connection in connections(broker))
            assert held < (3 + 10) * MIB, "three eighths of the budget, and one request"
            began = trio.current_time()
            for size in (100, 16 << 10, MIB - 100):
                records = batch(bytes(size), timestamp=broker.env.timestamp_ms())
                assert (await produce(client, "t", records)).error_code == 0
            assert trio.current_time() == began, "small requests do not wait for large ones"
            await trio.sleep(600)
            assert len(connections(broker)) == 1
            assert (await produce(client, "t", records)).error_code == 0
            nursery.cancel_scope.cancel()


async def test_w6_closing_a_stalled_request_frees_memory_for_a_large_one(autojump_clock: MockClock) -> None:
    settings = {"queued.max.request.bytes": 8 * MIB, "message.max.bytes": 20 * MIB}
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        async with trio.open_nursery() as nursery:
            hogs = [await broker.connect() for _ in range(3)]
            for hog in hogs:
                nursery.start_soon(begin_request, hog.stream, 50 * MIB, 30 * MIB)
            await trio.sleep(1)
            began = trio.current_time()
            records = batch(bytes(10 * MIB), timestamp=broker.env.timestamp_ms())
            assert (await produce(client, "t", records)).error_code == 0
            assert 5 < trio.current_time() - began < 60
            nursery.cancel_scope.cancel()


async def test_small_partial_requests_count_too(autojump_clock: MockClock) -> None:
    settings = {"queued.max.request.bytes": 4 * MIB}
    async with memory_broker(settings=settings) as broker, trio.open_nursery() as nursery:
        for _ in range(200):
            hog = await broker.connect()
            nursery.start_soon(begin_request, hog.stream, 62 << 10, 60 << 10)
        await trio.sleep(1)
        assert sum(connection.frames.pending_bytes for connection in connections(broker)) <= MIB
        assert len(connections(broker)) < 20
        await trio.sleep(120)
        assert connections(broker) == []
        nursery.cancel_scope.cancel()


async def test_unread_replies_are_bounded(autojump_clock: MockClock) -> None:
    async with memory_broker(settings={"kbroker.queued.max.response.bytes": 4 * MIB}) as broker:
        client = await broker.connect()
        everything = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        request = DescribeConfigsRequest(resources=[everything], include_synonyms=True, include_documentation=True)
        for _ in range(200):
            hog = await broker.connect()
            with suppress(ConnectionClosed):
                for _ in range(4):
                    await hog.send(request)
        await trio.sleep(1)
        server = broker.node.server
        assert server is not None
        assert 0 < server.memory.answers.used_bytes <= 4 * MIB
        assert server.memory.evicted > 0
        assert (await client.ask(DescribeGroupsRequest(groups=["g"]))).groups


async def test_w6_bombs_share_the_memory_for_unpacking(autojump_clock: MockClock) -> None:
    async with memory_broker(settings={"kbroker.max.unpacking.bytes": 12 * MIB}, latency_ms=1_000) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        bomb = batch(bytes(20 * MIB), codec=Codec.ZSTD, timestamp=broker.env.timestamp_ms())
        throwers = [await broker.connect() for _ in range(4)]
        for thrower in throwers:
            await thrower.send(producing(("t", 0, bomb)), version=NAMED)
        assert broker.node.broker is not None
        unpacking = broker.node.broker.appender.unpacking
        most = 0
        while unpacking.used_bytes or not most:
            most = max(most, unpacking.used_bytes)
            await trio.sleep(0.01)
        assert most <= 6 * MIB, "one at a time: together they take 16 MiB"
        for thrower in throwers:
            answer = await thrower.receive()
            assert answer.responses[0].partition_responses[0].error_code == 0


async def test_an_idle_connection_truncates_its_client_id(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        client = await broker.connect(client_id="x" * 30_000)
        await client.ask(DescribeGroupsRequest(groups=["g"]))
        await trio.sleep(3)
        (connection,) = connections(broker)
        assert len(connection.client_id) == 256


async def test_eviction_cancels_no_complete_request(autojump_clock: MockClock) -> None:
    settings = {"queued.max.request.bytes": MIB, "log.flush.interval.messages": 1}
    async with memory_broker(settings=settings, latency_ms=10_000) as broker, trio.open_nursery() as nursery:
        client = await broker.connect()
        await create_topic(client, "t")
        slow = await broker.connect()
        request = producing(("t", 0, batch(bytes(200_000), timestamp=broker.env.timestamp_ms())))
        nursery.start_soon(partial(slow.send, request, version=NAMED))
        await trio.sleep(0.01)
        nursery.start_soon(begin_request, slow.stream, 60 << 10, 50 << 10)
        await trio.sleep(0.01)
        for _ in range(40):
            hog = await broker.connect()
            nursery.start_soon(begin_request, hog.stream, 60 << 10, 58 << 10)
        await trio.sleep(0.01)
        answer = await slow.receive()
        assert answer.responses[0].partition_responses[0].error_code == 0
        nursery.cancel_scope.cancel()
