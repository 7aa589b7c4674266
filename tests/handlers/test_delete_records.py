import pytest

from kbroker.testing.disk import Fault
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, list_offset, produce, read
from wire.errors import ErrorCode


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_records_below_an_offset_are_deleted(client: Client, version: int) -> None:
    await create_topic(client, "t")
    for value in (b"a", b"b", b"c"):
        await produce(client, "t", batch(value))
    assert await delete_records(client, "t", 2, version=version) == (0, 2)
    assert await list_offset(client, "t", -2) == (0, 2, -1, 0)
    assert await read(client, "t", offset=2) == [b"c"]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (-1, (0, 3)),
        (3, (0, 3)),
        (1, (0, 2)),
        (0, (0, 2)),
        (4, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
        (-2, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
    ],
)
async def test_the_log_start_only_rises_up_to_the_high_watermark(
    client: Client, offset: int, expected: tuple[int, int]
) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a", b"b", b"c"))
    assert await delete_records(client, "t", 2) == (0, 2)
    assert await delete_records(client, "t", offset) == expected


async def test_refused_deletions_have_an_error(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    assert await delete_records(client, "t", 0, partition=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete_records(client, "absent", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete_records(client, "__consumer_offsets", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    await create_topic(client, "__consumer_offsets")
    assert await delete_records(client, "__consumer_offsets", 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
async def test_deleted_records_stay_deleted_after_a_crash(loss: Loss) -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"flush.messages": 1})
        await produce(client, "t", batch(b"a"))
        await produce(client, "t", batch(b"b"))
        await delete_records(client, "t", 1)
        survivor = broker.disk.crash(loss)
    async with memory_broker(survivor) as broker:
        client = await broker.connect()
        assert (await list_offset(client, "t", -2))[:2] == (0, 1)
        assert await read(client, "t", offset=1) == [b"b"]


async def test_a_checkpoint_that_cannot_be_written_is_a_storage_error(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a"))
    broker.disk.inject(Fault(28, name="write", path="*log-start-offset-checkpoint*", times=-1))
    assert await delete_records(client, "t", 1) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
