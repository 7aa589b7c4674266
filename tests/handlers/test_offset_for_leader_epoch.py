import pytest

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, list_offset, produce
from wire.errors import ErrorCode
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


async def end_of(
    client: Client, epoch: int, *, partition: int = 0, current: int = -1, version: int = 4
) -> tuple[int, int, int]:
    """(error code, epoch, end offset)."""
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    answer = await client.ask(
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]), version=version
    )
    found = answer.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_newest_epoch_ends_with_the_log(client: Client, version: int) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a", b"b"))
    assert await end_of(client, 0, version=version) == (0, 0, 2)
    assert await end_of(client, 1, version=version) == (0, -1, -1)
    assert await end_of(client, -1, version=version) == (0, -1, -1)


async def test_r13_the_current_leader_epoch_is_compared_first(client: Client) -> None:
    await create_topic(client, "t")
    assert (await end_of(client, 0, current=1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await end_of(client, 0, current=0))[0] == 0
    assert (await end_of(client, 0, partition=3))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_older_epoch_ends_where_the_next_one_begins(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a", b"b"))
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        client = await again.connect()
        await produce(client, "t", batch(b"c"))
        newest = (await list_offset(client, "t", -1))[3]
        assert newest > 0
        assert await end_of(client, 0) == (0, 0, 2)
        assert await end_of(client, newest - 1) == (0, 0, 2), "the largest epoch not above the one asked for"
        assert await end_of(client, newest) == (0, newest, 3)
        assert (await end_of(client, 0, current=0))[0] == ErrorCode.FENCED_LEADER_EPOCH
