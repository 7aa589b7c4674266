import pytest

from kbroker.testing.memory_node import Client, memory_broker
from tests.handlers.asking import batch, create_topic, produce, read
from wire.errors import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.types import ZERO_UUID


def asking(*names: str, create: bool = True) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name, topic_id=ZERO_UUID) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


@pytest.mark.parametrize("version", range(13))
async def test_every_version_returns_brokers_topics_and_leaders(client: Client, version: int) -> None:
    topic_id = await create_topic(client, "t", partitions=2)
    answer = await client.ask(asking("t"), version=version)
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(1, "broker.example", 9092)]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "t")
    assert topic.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert [(part.partition_index, part.leader_id, part.replica_nodes) for part in topic.partitions] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    assert answer.controller_id == (1 if version >= 1 else -1)


@pytest.mark.parametrize(("version", "everything"), [(0, []), (1, None), (12, None)])
async def test_all_topics_is_an_empty_list_in_version_0(
    client: Client, version: int, everything: list[MetadataRequestTopic] | None
) -> None:
    await create_topic(client, "a")
    await create_topic(client, "b")
    answer = await client.ask(MetadataRequest(topics=everything), version=version)
    assert [topic.name for topic in answer.topics] == ["a", "b"]
    if version:
        assert (await client.ask(MetadataRequest(topics=[]), version=version)).topics == []


async def test_an_unknown_topic_is_created_and_found_by_a_retry(client: Client) -> None:
    first = await client.ask(asking("new"))
    assert first.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    second = await client.ask(asking("new"))
    assert (second.topics[0].error_code, len(second.topics[0].partitions)) == (0, 1)
    assert (await produce(client, "new", batch(b"v"))).error_code == 0
    assert await read(client, "new") == [b"v"]


@pytest.mark.parametrize(("version", "name"), [(4, "t"), (12, "t"), (12, "../t"), (12, "__cluster_metadata")])
async def test_x5_disallowed_topics_are_not_created(client: Client, version: int, name: str) -> None:
    creates = name != "t"
    for _ in range(2):
        answer = await client.ask(asking(name, create=creates), version=version)
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if "/" in name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[0].error_code == code


async def test_automatic_creation_can_be_disabled() -> None:
    async with memory_broker(settings={"auto.create.topics.enable": "false"}) as broker:
        client = await broker.connect()
        for _ in range(2):
            answer = await client.ask(asking("new"))
            assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_cluster_is_described(client: Client) -> None:
    answer = await client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False))
    everything = await client.ask(MetadataRequest(topics=None))
    assert (answer.error_code, answer.controller_id) == (0, 1)
    assert answer.cluster_id == everything.cluster_id
    assert [broker.broker_id for broker in answer.brokers] == [1]


async def test_partitions_are_described_in_pages(client: Client) -> None:
    await create_topic(client, "a", partitions=2)
    await create_topic(client, "b", partitions=3)
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in ("b", "a", "c")], response_partition_limit=4
    )
    first = await client.ask(request)
    assert [(topic.name, len(topic.partitions)) for topic in first.topics] == [("a", 2), ("b", 2)]
    assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == ("b", 2)
    request.cursor = Cursor(topic_name="b", partition_index=2)
    second = await client.ask(request)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in second.topics] == [
        ("b", 0, 1),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    assert second.next_cursor is None
