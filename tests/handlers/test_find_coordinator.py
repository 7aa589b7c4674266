"""FindCoordinator, and the creation of internal topics by its first request."""

from uuid import UUID

import pytest
import trio

from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_topic, produce
from tests.handlers.groups import commit, find
from wire.errors import ErrorCode
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from wire.types import ZERO_UUID, uuid_to_text

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
SHARE_STATE = "__share_group_state"
GROUP, TRANSACTION, SHARE = 0, 1, 2
TOPIC_ID = uuid_to_text(UUID(int=7))


async def ask(client: Client, *keys: str, key_type: int = GROUP, version: int = 6) -> list[Coordinator]:
    """The coordinators of some keys, in the same form for all versions."""
    if version >= 4:
        answer = await client.ask(
            FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type), version=version
        )
        return list(answer.coordinators)
    one = await client.ask(FindCoordinatorRequest(key=keys[0], key_type=key_type), version=version)
    return [
        Coordinator(
            key=keys[0],
            node_id=one.node_id,
            host=one.host,
            port=one.port,
            error_code=one.error_code,
            error_message=one.error_message,
        )
    ]


async def describe(client: Client, name: str = OFFSETS) -> MetadataResponseTopic:
    answer = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=ZERO_UUID)]))
    found = answer.topics[0]
    assert isinstance(found, MetadataResponseTopic)
    return found


async def settings_of_offsets(client: Client) -> dict[str, str]:
    return await settings_of(client, OFFSETS, "cleanup.policy", "compression.type", "segment.bytes")


async def settings_of(client: Client, topic: str, *keys: str) -> dict[str, str]:
    asked = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=list(keys))
    answer = await client.ask(DescribeConfigsRequest(resources=[asked]))
    return {one.name: one.value for one in answer.results[0].configs}


@pytest.mark.parametrize("version", range(7))
async def test_the_first_request_creates_the_topic_and_finds_the_node(client: Client, version: int) -> None:
    assert (await describe(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = (await ask(client, "g", version=version))[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "broker.example", 9092)
    topic = await describe(client)
    assert topic.is_internal
    assert len(topic.partitions) == 50
    assert {tuple(partition.replica_nodes) for partition in topic.partitions} == {(1,)}
    assert await settings_of_offsets(client) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


async def test_several_groups_are_found_independently(client: Client) -> None:
    found = await ask(client, "a", "b", "", "a")
    assert [(one.key, one.error_code, one.node_id) for one in found] == [
        ("a", 0, 1),
        ("b", 0, 1),
        ("", 0, 1),
    ]
    assert await ask(client) == []


async def test_simultaneous_first_requests_create_one_topic(broker: MemoryBroker) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(find, await broker.connect(), f"group-{number}")
    client = await broker.connect()
    assert (await describe(client)).error_code == 0


async def test_the_offsets_topic_follows_its_settings() -> None:
    own = {"offsets.topic.num.partitions": 3, "offsets.topic.segment.bytes": 4096}
    async with memory_broker(settings=own) as broker:
        client = await broker.connect()
        await find(client)
        assert len((await describe(client)).partitions) == 3
        assert (await settings_of_offsets(client))["segment.bytes"] == "4096"


async def test_more_replicas_than_brokers_leave_groups_without_a_coordinator() -> None:
    async with memory_broker(settings={"offsets.topic.replication.factor": 3}) as broker:
        client = await broker.connect()
        found = (await ask(client, "g"))[0]
        assert (found.error_code, found.node_id, found.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        assert (await describe(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_transactional_id_creates_its_topic_with_kafkas_settings(client: Client, version: int) -> None:
    found = (await ask(client, "t", key_type=TRANSACTION, version=version))[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "broker.example", 9092)
    topic = await describe(client, TRANSACTIONS)
    assert topic.is_internal
    assert len(topic.partitions) == 50
    assert await settings_of(
        client,
        TRANSACTIONS,
        "cleanup.policy",
        "compression.type",
        "min.insync.replicas",
        "segment.bytes",
        "unclean.leader.election.enable",
    ) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert (await describe(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("key_type", "version"), [(SHARE, 3), (SHARE, 5), (7, 6), (-1, 1)])
async def test_unknown_kinds_are_invalid(client: Client, key_type: int, version: int) -> None:
    found = (await ask(client, f"s:{TOPIC_ID}:0", key_type=key_type, version=version))[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (ErrorCode.INVALID_REQUEST, -1, "", -1)


@pytest.mark.parametrize("key", ["", "s", "s:0", f"s:{TOPIC_ID}", f":{TOPIC_ID}:0", f"s:{TOPIC_ID}:x", "s:x:0"])
async def test_a_share_key_without_its_parts_is_invalid(client: Client, key: str) -> None:
    assert (await ask(client, key, key_type=SHARE))[0].error_code == ErrorCode.INVALID_REQUEST


async def test_the_state_of_a_share_group_is_with_the_leader_of_its_topic(client: Client) -> None:
    """Brokers of Apache Kafka in the cluster create the topic; kbroker does not."""
    key = f"a:b:{TOPIC_ID}:0"
    assert (await ask(client, key, key_type=SHARE))[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await create_topic(client, SHARE_STATE, partitions=3)
    found = (await ask(client, key, key_type=SHARE))[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "broker.example", 9092)


async def test_clients_cannot_produce_to_the_offsets_topic(client: Client) -> None:
    await find(client)
    answer = await produce(client, OFFSETS, batch(b"x"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_the_offsets_topic_is_recreated_after_its_deletion(client: Client) -> None:
    await find(client)
    await delete_topic(client, OFFSETS)
    assert await commit(client, {("t", 0): 1}) == {("t", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (await describe(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await find(client)
    assert len((await describe(client)).partitions) == 50
