"""W6 and W12: bounds on the state and the decompressed data that clients can cause."""

from __future__ import annotations

import trio

from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    BROKER,
    NAMED,
    batch,
    create_topic,
    fetching,
    list_offset,
    new_producer,
    produce,
    producing,
    wanted,
)
from tests.handlers.groups import find, form
from tests.handlers.test_configs import DEFAULT, alter, describe
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

HOUR_S = 3_600
MIB = 1 << 20


def known_producers(broker: MemoryBroker) -> set[int]:
    assert broker.node.broker is not None
    return set(broker.node.broker.find("t", 0).log.producers.producers)


async def first_batch(broker: MemoryBroker, client: Client) -> int:
    """Produce as a new producer; return its id."""
    producer = await new_producer(client)
    records = batch(b"v", timestamp=broker.env.timestamp_ms(), producer_id=producer, producer_epoch=0, base_sequence=0)
    assert (await produce(client, "t", records)).error_code == 0
    return producer


async def test_w12_an_idle_producer_expires(broker: MemoryBroker, client: Client) -> None:
    """The default is a day; the test uses an hour, because a virtual day takes seconds."""
    assert await describe(client, BROKER, "1", "producer.id.expiration.ms") == (str(24 * HOUR_S * 1000), DEFAULT)
    assert await alter(client, BROKER, "", "producer.id.expiration.ms", str(HOUR_S * 1000)) == 0
    await create_topic(client, "t")
    silent = await first_batch(broker, client)
    await trio.sleep(0.8 * HOUR_S)
    active = await first_batch(broker, await broker.connect())
    await trio.sleep(0.15 * HOUR_S)
    assert known_producers(broker) == {silent, active}
    await trio.sleep(0.2 * HOUR_S)
    assert known_producers(broker) == {active}


async def test_w12_a_partition_remembers_a_bounded_number_of_producers() -> None:
    async with memory_broker(settings={"kbroker.max.producers.per.partition": 32}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        producers = [await first_batch(broker, client) for _ in range(100)]
        known = known_producers(broker)
        assert len(known) <= 32
        assert set(producers[-30:]) <= known
    async with memory_broker(broker.disk, settings={"kbroker.max.producers.per.partition": 32}) as again:
        assert len(known_producers(again)) <= 32


async def test_w12_five_thousand_fetchers_share_a_thousand_sessions(client: Client) -> None:
    await create_topic(client, "t")
    granted = []
    for _ in range(1_100):
        answer = await client.ask(fetching("t", wanted(), session=(0, 0)), version=12)
        assert answer.error_code == 0
        granted.append(answer.session_id)
    assert 0 not in granted[:1_000]
    assert set(granted[1_000:]) == {0}
    assert len(set(granted)) == 1_001


def bomb(unpacked_bytes: int) -> bytes:
    """A batch of one record with this decompressed size."""
    return batch(bytes(unpacked_bytes), codec=Codec.GZIP)


async def test_w6_a_compression_bomb_is_refused_and_not_stored() -> None:
    async with memory_broker(settings={"kbroker.max.decompressed.batch.bytes": 4 * MIB}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        assert (await produce(client, "t", bomb(3 * MIB))).error_code == 0
        packed = bomb(64 * MIB)
        assert len(packed) < MIB // 4
        assert (await produce(client, "t", packed)).error_code == ErrorCode.INVALID_RECORD
        assert (await list_offset(client, "t", -1))[1] == 1


async def test_w6_unpacking_a_bomb_delays_only_its_sender() -> None:
    async with memory_broker(latency_ms=1_000) as broker:
        client, other = await broker.connect(), await broker.connect()
        await create_topic(client, "t")
        began = trio.current_time()
        await client.send(producing(("t", 0, bomb(2 * MIB))), version=NAMED)
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        assert (await other.ask(request)).error_code == 0
        assert trio.current_time() == began, "the event loop was free"
        answer = await client.receive()
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert trio.current_time() > began


async def test_a_short_request_cannot_multiply_long_descriptions(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await first_batch(broker, client)
    twice = [TopicRequest(name="t", partition_indexes=[0, 0]) for _ in range(2)]
    (topic,) = (await client.ask(DescribeProducersRequest(topics=twice))).topics
    assert [len(one.active_producers) for one in topic.partitions] == [1]
    await find(client)
    await form(client)
    described = await client.ask(DescribeGroupsRequest(groups=["g", "absent", "g"]))
    assert [(one.group_id, len(one.members)) for one in described.groups] == [("g", 1), ("absent", 0)]
