"""Topics are deleted while background tasks flush and expire their logs."""

import pytest
import trio

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, delete_topic, list_offset, produce, read


@pytest.mark.parametrize("seed", range(4))
async def test_r15_deleting_topics_during_a_flush_is_safe(seed: int) -> None:
    """The flush of a log must not fail on a removed directory or write into that of the recreated topic."""
    async with memory_broker(seed=seed, latency_ms=100) as broker:
        admin, writer = await broker.connect(), await broker.connect()
        names = [f"t{number}" for number in range(6)]
        for name in names:
            await create_topic(admin, name, settings={"flush.ms": 1, "segment.bytes": 2000})
        done = trio.Event()

        async def fill() -> None:
            while not done.is_set():
                for name in names:
                    await produce(writer, name, batch(b"x" * 500))
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            for _ in range(10):
                for name in names:
                    await delete_topic(admin, name)
                    await create_topic(admin, name, settings={"flush.ms": 1, "segment.bytes": 2000})
            done.set()
        assert broker.node.broker is not None
        assert broker.node.broker.replicas.directory.state.failure is None
        for name in names:
            end = (await list_offset(admin, name, -1))[1]
            found: list[bytes | None] = []
            while len(found) < end:
                found += await read(admin, name, offset=len(found))
            assert found == [b"x" * 500] * end


async def test_retention_queued_behind_a_deletion_spares_the_recreated_topic(
    broker: MemoryBroker,
) -> None:
    client = await broker.connect()
    await create_topic(client, "t", settings={"retention.ms": 1})
    await produce(client, "t", batch(b"old"))
    assert broker.node.broker is not None
    old = broker.node.broker.replicas.partitions["t", 0].log
    await delete_topic(client, "t")
    assert old.is_closed
    await create_topic(client, "t")
    await produce(client, "t", batch(b"new"))
    assert broker.node.broker.high_watermark(old) == old.log_start_offset, (
        "it does not show the recreated topic's offset"
    )
    await trio.sleep(400)
    assert await read(client, "t") == [b"new"]


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
async def test_r15_a_recreated_topic_ignores_checkpoints_of_the_deleted_one(loss: Loss) -> None:
    """The log start offset, the recovery point and the high watermark start again."""
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"flush.messages": 1})
        for _ in range(50):
            await produce(client, "t", batch(b"old"))
        await delete_records(client, "t", 40)
        await trio.sleep(120)
        await delete_topic(client, "t")
        await create_topic(client, "t", settings={"flush.messages": 1})
        for number in range(3):
            await produce(client, "t", batch(b"%d" % number))
        survivor = broker.disk.crash(loss)
    async with memory_broker(survivor) as broker:
        client = await broker.connect()
        assert [(await list_offset(client, "t", name))[1] for name in (-2, -1)] == [0, 3]
        assert await read(client, "t") == [b"0", b"1", b"2"]
