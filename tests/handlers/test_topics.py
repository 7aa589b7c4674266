"""The effects of CreateTopics, CreatePartitions and DeleteTopics on partitions and files."""

import pytest
import trio

from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.testing.disk import Fault
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_topic, list_offset, produce, read
from wire.errors import ErrorCode
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.types import ZERO_UUID

HOSTILE = ["../x", "..", ".", "", "nul\0", "a/b", "x" * 250, "a b", "\N{SNOWMAN}"]


def creating(name: str, *, partitions: int = 1) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_served_when_create_topics_is_answered(client: Client, version: int) -> None:
    answer = await client.ask(creating("t", partitions=3), version=version)
    assert answer.topics[0].error_code == 0
    for partition in range(3):
        assert (await produce(client, "t", batch(b"v"), partition=partition)).error_code == 0


@pytest.mark.parametrize("name", HOSTILE)
async def test_x5_a_hostile_name_is_refused_and_creates_no_file(
    broker: MemoryBroker, client: Client, name: str
) -> None:
    before = broker.files()
    answer = await client.ask(creating(name))
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert broker.files() == before
    assert set(broker.disk.list("/")) == {"data"}


async def test_x5_the_longest_name_is_created_and_deleted(broker: MemoryBroker, client: Client) -> None:
    name = "x" * 249
    await create_topic(client, name)
    assert (await produce(client, name, batch(b"v"))).error_code == 0
    await delete_topic(client, name)
    await trio.sleep(120)
    assert not any(path.startswith("x") for path in broker.files())


async def test_x5_names_that_metrics_cannot_distinguish_collide(client: Client) -> None:
    await create_topic(client, "a.b")
    assert (await client.ask(creating("a_b"))).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_w11_a_setting_bounds_the_metadata_of_one_request() -> None:
    async with memory_broker(settings={"kbroker.max.metadata.records": 5}) as broker:
        client = await broker.connect()
        assert (await client.ask(creating("t", partitions=5))).topics[0].error_code == ErrorCode.POLICY_VIOLATION
        assert (await client.ask(creating("t", partitions=4))).topics[0].error_code == 0


async def test_r15_a_recreated_topic_has_a_new_id_and_empty_log(broker: MemoryBroker, client: Client) -> None:
    old = await create_topic(client, "t", partitions=2)
    for _ in range(3):
        await produce(client, "t", batch(b"old"))
    await delete_topic(client, "t")
    new = await create_topic(client, "t")
    assert new != old
    assert await list_offset(client, "t", -1) == (0, 0, -1, 0)
    await produce(client, "t", batch(b"new"))
    assert await read(client, "t") == [b"new"]
    assert (await produce(client, "t", batch(b"v"), partition=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await trio.sleep(120)
    assert not any(path.endswith("-delete") for path in broker.files())
    assert await read(client, "t") == [b"new"]


@pytest.mark.parametrize("seed", range(3))
async def test_r15_deletion_and_recreation_in_one_image_under_load(seed: int) -> None:
    """The broker gets both decisions in one image, while producers write."""
    async with memory_broker(seed=seed, latency_ms=30) as broker:
        admins = [await broker.connect() for _ in range(2)]
        await create_topic(admins[0], "t")
        codes, replaced = set(), 0

        def count_replacements(_image: Image, delta: Delta) -> None:
            nonlocal replaced
            replaced += bool(delta.deleted_topics and delta.created_topics)

        assert broker.node.broker is not None
        broker.node.broker.metadata.add_listener(count_replacements)

        async def write(number: int) -> None:
            client = await broker.connect()
            for _ in range(30):
                codes.add((await produce(client, "t", batch(b"%d" % number * 70_000))).error_code)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(write, number)
            attempts = 0
            while attempts < 5 or (not replaced and attempts < 500):  # trio runs ready tasks in random order
                attempts += 1
                topic = DeleteTopicState(name="t", topic_id=ZERO_UUID)
                await admins[0].send(DeleteTopicsRequest(topics=[topic], topic_names=[], timeout_ms=1000))
                await admins[1].send(creating("t"))
                deleted, created = await admins[0].receive(), await admins[1].receive()
                assert deleted.responses[0].error_code == 0
                if created.topics[0].error_code:
                    await create_topic(admins[1], "t")
        assert replaced > 0, "one image replaced a topic with its successor"
        assert codes <= {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        count = (await list_offset(admins[0], "t", -1))[1]
        found: list[bytes | None] = []
        while len(found) < count:
            found += await read(admins[0], "t", offset=len(found))
        assert len(found) == count
        async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
            client = await again.connect()
            assert (await list_offset(client, "t", -1))[1] == count


async def test_the_next_start_finishes_an_interrupted_deletion() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await create_topic(client, "kept")
        broker.disk.inject(Fault(5, name="rename", path="*/t-0"))
        await delete_topic(client, "t")
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    assert survivor.exists("/data/t-0")
    async with memory_broker(survivor) as broker:
        await trio.sleep(120)
        assert not any(path.startswith("t-0") for path in broker.files())
        assert "kept-0/partition.metadata" in broker.files()


async def test_a_failed_partition_is_a_storage_error_until_recreated(broker: MemoryBroker, client: Client) -> None:
    broker.disk.inject(Fault(28, name="write", path="*/t-0/*"))
    await create_topic(client, "t", partitions=2)
    assert (await produce(client, "t", batch(b"v"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await produce(client, "t", batch(b"v"), partition=1)).error_code == 0
    await delete_topic(client, "t")
    await create_topic(client, "t")
    assert (await produce(client, "t", batch(b"v"))).error_code == 0


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(client: Client, version: int) -> None:
    await create_topic(client, "t")
    topics = [CreatePartitionsTopic(name="t", count=3, assignments=None)]
    answer = await client.ask(
        CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False), version=version
    )
    assert answer.results[0].error_code == 0
    assert [(await produce(client, "t", batch(b"v"), partition=index)).error_code for index in range(4)] == [0, 0, 0, 3]


async def test_each_deleted_topic_is_logged_with_the_client(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker")
    client = await broker.connect(client_id="a tool")
    names = ["t", "u"]
    for name in names:
        await create_topic(client, name)
    topics = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in [*names, "missing"]]
    await client.ask(DeleteTopicsRequest(topics=topics, topic_names=[], timeout_ms=1000))
    lines = [line for line in caplog.records if line.getMessage() == "topic deleted"]
    fields = [vars(line)["kbroker_fields"] for line in lines]
    assert [(each["topic"], each["client_id"], bool(each["peer"])) for each in fields] == [
        (name, "a tool", True) for name in names
    ]
