"""Client quotas: how they are described, and what they do to connections, in virtual time."""

from __future__ import annotations

import pytest
import trio

from kbroker.client.streaming import ConnectionClosed
from kbroker.metadata.image import QuotaEntity
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.controller.test_client_quotas import entry
from tests.handlers.asking import batch, create_topic, fetching, parts, producing, read, values, wanted
from wire.errors import ErrorCode
from wire.messages.alter_client_quotas import AlterClientQuotasRequest
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.types import ZERO_UUID

USER: QuotaEntity = (("user", "ANONYMOUS"),)
DEFAULT: QuotaEntity = (("client-id", None),)
EXACT, IS_DEFAULT, ANY = 0, 1, 2


async def limit(client: Client, entity: QuotaEntity, **quotas: float | None) -> None:
    """Set quotas; they are in effect afterwards."""
    answer = await client.ask(AlterClientQuotasRequest(entries=[entry(entity, *quotas.items())], validate_only=False))
    assert [one.error_code for one in answer.entries] == [0]


async def produced(client: Client, size: int) -> int:
    """Produce `size` bytes; returns the throttle time."""
    answer = await client.ask(producing(("t", 0, batch(bytes(size))), acks=1), version=12)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return int(answer.throttle_time_ms)


QUOTAS: dict[QuotaEntity, float] = {
    (("user", "a"),): 1,
    (("user", None),): 2,
    (("client-id", "c"), ("user", "a")): 3,
    (("client-id", None), ("user", "a")): 4,
    (("client-id", "c"),): 5,
}


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), False, {1, 2, 3, 4, 5}),
        ((), True, set()),
        ((("user", EXACT, "a"),), False, {1, 3, 4}),
        ((("user", EXACT, "a"),), True, {1}),
        ((("user", IS_DEFAULT, None),), False, {2}),
        ((("user", ANY, None),), True, {1, 2}),
        ((("user", ANY, None), ("client-id", ANY, None)), True, {3, 4}),
        ((("user", EXACT, "a"), ("client-id", IS_DEFAULT, None)), False, {4}),
        ((("client-id", EXACT, "c"),), False, {3, 5}),
        ((("ip", ANY, None),), False, set()),
    ],
)
async def test_quotas_are_described_by_the_components_of_their_entity(
    client: Client, components: tuple[tuple[str, int, str | None], ...], strict: bool, found: set[float]
) -> None:
    for entity, value in QUOTAS.items():
        await limit(client, entity, producer_byte_rate=value)
    wanted = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    for version in (0, 1):
        answer = await client.ask(DescribeClientQuotasRequest(components=wanted, strict=strict), version=version)
        assert answer.error_code == 0
        assert {one.values[0].value for one in answer.entries} == found
        entities = [tuple((part.entity_type, part.entity_name) for part in one.entity) for one in answer.entries]
        assert {QUOTAS[entity] for entity in entities} == found


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", ANY, None)] * 2, ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", IS_DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_impossible_filter_is_refused(
    client: Client, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    wanted = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    answer = await client.ask(DescribeClientQuotasRequest(components=wanted, strict=False))
    assert (answer.error_code, answer.entries) == (code, None)


async def test_users_without_credentials_are_described_as_in_kafka(client: Client) -> None:
    assert not (await client.ask(DescribeUserScramCredentialsRequest(users=None))).results
    names = [UserName(name=name) for name in ("a", "b", "b")]
    answer = await client.ask(DescribeUserScramCredentialsRequest(users=names))
    codes = {one.user: one.error_code for one in answer.results}
    assert codes == {"a": ErrorCode.RESOURCE_NOT_FOUND, "b": ErrorCode.DUPLICATE_RESOURCE}


async def test_w13_a_producer_above_its_quota_is_muted_and_others_are_not(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, (("client-id", "fast"),), producer_byte_rate=1_000)
    fast, other = await broker.connect(client_id="fast"), await broker.connect(client_id="other")
    assert await produced(fast, 5_000) == 0
    throttle_ms = await produced(fast, 15_000)
    assert 10_000 < throttle_ms < 10_500
    began = trio.current_time()
    assert await produced(other, 50_000) == 0
    again = await broker.connect(client_id="fast")
    await again.ask(ListGroupsRequest(states_filter=[], types_filter=[]))
    assert trio.current_time() == began
    await fast.ask(ListGroupsRequest(states_filter=[], types_filter=[]))
    assert trio.current_time() - began == pytest.approx(throttle_ms / 1000, abs=0.01)


async def test_w13_the_measured_rate_keeps_to_the_quota(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, DEFAULT, producer_byte_rate=10_000)
    for name in ("a", "b"):
        producer, sent = await broker.connect(client_id=name), 0
        while await produced(producer, 7_000) == 0:
            pass  # the quota of ten windows may be used at once
        began = trio.current_time()
        while trio.current_time() - began < 120:
            await produced(producer, 7_000)
            sent += 7_000
        assert sent / 120 == pytest.approx(10_000, rel=0.1)


async def test_a_pipelined_produce_waits_in_the_muted_connection(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, (("client-id", "p"),), producer_byte_rate=1_000)
    producer = await broker.connect(client_id="p")
    for _ in range(2):
        await producer.send(producing(("t", 0, batch(bytes(20_000))), acks=-1), version=12)
    first = await producer.receive()
    began = trio.current_time()
    await trio.sleep(9)
    assert len(await read(client, "t")) == 1
    second = await producer.receive()
    assert trio.current_time() - began == pytest.approx(first.throttle_time_ms / 1000, abs=0.01)
    assert second.throttle_time_ms > 5_000


async def test_a_produce_without_acks_is_muted_too(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, USER, producer_byte_rate=1_000)
    producer = await broker.connect()
    await producer.send(producing(("t", 0, batch(bytes(30_000))), acks=0), version=12, is_answered=False)
    await producer.ask(ListGroupsRequest(states_filter=[], types_filter=[]))
    assert 20 < trio.current_time() < 21


async def test_w13_a_consumer_above_its_quota_gets_nothing_and_then_goes_on(
    broker: MemoryBroker, client: Client
) -> None:
    by_id = await create_topic(client, "t")
    for _ in range(4):
        await produced(client, 6_000)
    await limit(client, (("client-id", "reader"),), consumer_byte_rate=1_000)
    reader = await broker.connect(client_id="reader")
    offset, throttled, session_id, epoch = 0, 0, 0, 0
    while offset < 4:
        answer = await reader.ask(fetching(by_id, wanted(0, offset), session=(session_id, epoch)))
        assert answer.error_code == 0
        if answer.throttle_time_ms:
            assert not answer.responses
            assert answer.session_id == session_id
            throttled += 1
        else:
            offset += len(values(parts(answer)[0]))
            session_id = answer.session_id
        epoch = epoch + 1 if session_id else 0
    assert throttled >= 2
    assert 14 < trio.current_time() < 40  # the last 14 kB of 24


async def test_a_batch_above_the_quota_of_all_windows_is_sent_alone(broker: MemoryBroker, client: Client) -> None:
    by_id = await create_topic(client, "t")
    for _ in range(2):
        await produced(client, 100_000)
    await limit(client, DEFAULT, consumer_byte_rate=1_000)
    reader = await broker.connect()
    first = await reader.ask(fetching(by_id, wanted()))
    assert len(values(parts(first)[0])) == 1
    assert 90_000 < first.throttle_time_ms < 91_000
    second = await reader.ask(fetching(by_id, wanted(0, 1)))
    assert len(values(parts(second)[0])) == 1
    assert 90 < trio.current_time() < 92


async def test_fetches_of_followers_have_no_quota(broker: MemoryBroker, client: Client) -> None:
    by_id = await create_topic(client, "t")
    await produced(client, 100_000)
    await limit(client, USER, consumer_byte_rate=1)
    broker.node.broker.quotas.charge_request = lambda *_: 700  # type: ignore[union-attr,method-assign]
    follower = await broker.connect()
    for _ in range(3):
        answer = await follower.ask(fetching(by_id, wanted(), replica_id=7, replica_epoch=-1))
        assert answer.throttle_time_ms == 0


async def test_a_muted_connection_that_its_client_closes_is_forgotten(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, DEFAULT, producer_byte_rate=1)
    assert broker.node.server is not None
    before = len(broker.node.server.connections)
    muted = await broker.connect()
    assert await produced(muted, 10_000) > 1_000_000
    muted.close()
    await trio.sleep(1)
    assert len(broker.node.server.connections) == before


async def test_requests_before_the_end_of_a_muted_connection_are_handled(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, (("client-id", "p"),), producer_byte_rate=1_000)
    producer = await broker.connect(client_id="p")
    await produced(producer, 30_000)
    for _ in range(3):
        await producer.send(producing(("t", 0, batch(b"v")), acks=0), version=12, is_answered=False)
    await producer.stream.send([b"\0"])
    producer.close()
    await trio.sleep(10)
    assert len(await read(client, "t")) == 1
    await trio.sleep(120)
    assert len(await read(client, "t")) == 4


async def test_a_stop_does_not_wait_for_muted_connections() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await limit(client, DEFAULT, producer_byte_rate=1)
        await produced(client, 10_000)
        began = trio.current_time()
        broker.node.stop()
        with pytest.raises(ConnectionClosed):
            await client.receive()
        assert trio.current_time() - began < 1


async def test_w13_a_client_above_its_mutation_quota_is_refused_and_muted(broker: MemoryBroker, client: Client) -> None:
    await limit(client, DEFAULT, controller_mutation_rate=1)

    def creating(name: str, partitions: int) -> CreateTopicsRequest:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        return CreateTopicsRequest(topics=[topic], timeout_ms=1)

    assert (await client.ask(creating("a", 31))).throttle_time_ms == 0
    began = trio.current_time()
    refused = await client.ask(creating("b", 1))
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 19_000 < refused.throttle_time_ms <= 20_000
    assert (await client.ask(creating("b", 1))).topics[0].error_code == 0
    assert trio.current_time() - began == pytest.approx(20, abs=0.5)
    older = await client.ask(creating("c", 12), version=5)
    assert older.topics[0].error_code == 0
    assert older.throttle_time_ms > 10_000


@pytest.mark.parametrize("version", [0, 3, 12])
async def test_a_throttle_time_is_left_out_of_versions_without_it(broker: MemoryBroker, version: int) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    await limit(client, DEFAULT, producer_byte_rate=1)
    broker.node.broker.quotas.charge_request = lambda *_: 700  # type: ignore[union-attr,method-assign]
    began = trio.current_time()
    for _ in range(2):
        answer = await client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=ZERO_UUID)]), version=version
        )
    assert answer.throttle_time_ms == (0 if version < 3 else 700)
    assert trio.current_time() - began == pytest.approx(0.7, abs=0.01)


async def test_connections_above_the_rate_of_their_address_are_served_later(broker: MemoryBroker) -> None:
    admin = await broker.connect()
    await limit(admin, (("ip", None),), connection_creation_rate=1)
    began = trio.current_time()
    served: list[float] = []
    closed: list[float] = []

    async def ask() -> None:
        client = await broker.connect()
        try:
            await client.ask(ListGroupsRequest(states_filter=[], types_filter=[]))
        except ConnectionClosed:
            closed.append(trio.current_time() - began)
        else:
            served.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask)
    assert served[:11] == pytest.approx([0] * 11, abs=0.05)
    assert served[11:] == pytest.approx(list(range(1, 12)), abs=0.1)
    assert closed == pytest.approx([1] * 18, abs=0.1)
    await trio.sleep(1)
    for _ in range(2):
        await ask()
    assert served[22:] == pytest.approx([12, 13], abs=0.1)
    await limit(admin, (("ip", None),), connection_creation_rate=None)
    await ask()
    assert served[24:] == pytest.approx([13], abs=0.1)


async def test_a_changed_quota_applies_to_what_was_measured(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await limit(client, DEFAULT, producer_byte_rate=1_000_000)
    producer = await broker.connect()
    assert await produced(producer, 50_000) == 0
    await limit(client, DEFAULT, producer_byte_rate=1_000)
    assert await produced(producer, 1) > 30_000
    await limit(client, DEFAULT, producer_byte_rate=None)
    unlimited = await broker.connect()
    assert await produced(unlimited, 1_000_000) == 0


async def test_quotas_are_in_force_after_a_restart() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await limit(client, DEFAULT, producer_byte_rate=1_000)
        await limit(client, (("ip", None),), connection_creation_rate=5)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        assert await produced(client, 50_000) > 30_000
        assert broker.node.broker is not None
        assert len(broker.node.broker.quotas.addresses) == 1
