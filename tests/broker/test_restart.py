"""State that survives a clean stop or a crash."""

import pytest

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, memory_broker
from tests.handlers.asking import batch, create_topic, list_offset, new_producer, produce, read
from wire.errors import ErrorCode
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.types import ZERO_UUID


async def leader_epoch(client: Client, topic: str) -> int:
    topics = [MetadataRequestTopic(name=topic, topic_id=ZERO_UUID)]
    answer = await client.ask(MetadataRequest(topics=topics))
    return int(answer.topics[0].partitions[0].leader_epoch)


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
async def test_each_start_raises_the_leader_epoch_and_keeps_acknowledged_records(cleanly: bool) -> None:
    disk, epochs = SimulatedDisk(), []
    for start in range(4):
        async with memory_broker(disk, stops_cleanly=cleanly) as broker:
            client = await broker.connect()
            if start == 0:
                await create_topic(client, "t")
            assert await read(client, "t") == [b"%d" % number for number in range(start)]
            assert await list_offset(client, "t", -1) == (0, start, -1, await leader_epoch(client, "t"))
            epochs.append(await leader_epoch(client, "t"))
            assert (await produce(client, "t", batch(b"%d" % start))).base_offset == start
            survivor = broker.disk if cleanly else broker.disk.crash(Loss.PROCESS_DEATH)
        disk = survivor
    assert epochs == sorted(set(epochs)), "each start raises the epoch"
    if cleanly:
        checkpoint = disk.image("/data/t-0")["/data/t-0/leader-epoch-checkpoint"]
        assert checkpoint is not None
        assert checkpoint.decode().splitlines()[2:] == [f"{epoch} {at}" for at, epoch in enumerate(epochs)]


async def test_a_producer_is_remembered_after_a_crash() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        producer = {"producer_id": await new_producer(client), "producer_epoch": 0}
        first = batch(b"a", base_sequence=0, **producer)
        assert (await produce(client, "t", first)).base_offset == 0
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor) as broker:
        client = await broker.connect()
        assert (await produce(client, "t", first)).base_offset == 0
        gap = await produce(client, "t", batch(b"c", base_sequence=2, **producer))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await produce(client, "t", batch(b"b", base_sequence=1, **producer))).base_offset == 1
        assert await read(client, "t") == [b"a", b"b"]


@pytest.mark.parametrize("loss", [Loss.ONLY_SYNCED, Loss.SECTORS, Loss.TORN])
async def test_d7_with_synced_appends_a_power_loss_loses_nothing(loss: Loss) -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"flush.messages": 1, "segment.bytes": 1 << 20})
        values = [bytes([number]) * 300_000 for number in range(8)]
        for value in values:
            assert (await produce(client, "t", batch(value))).error_code == 0
        survivor = broker.disk.crash(loss, seed=7)
    async with memory_broker(survivor) as broker:
        client = await broker.connect()
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += await read(client, "t", offset=len(found))
        assert found == values


async def test_a_high_watermark_is_never_beyond_the_log_end() -> None:
    """The checkpoint can be newer than the log that a power loss leaves."""
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        for _ in range(3):
            await produce(client, "t", batch(b"v"))
    broker.disk.open("/data/replication-offset-checkpoint").truncate(0)
    broker.disk.open("/data/replication-offset-checkpoint").pwrite(b"0\n1\nt 0 99\n", 0)
    async with memory_broker(broker.disk) as broker:
        client = await broker.connect()
        assert (await list_offset(client, "t", -1))[:2] == (0, 3)
