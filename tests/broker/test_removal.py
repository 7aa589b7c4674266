"""Topics that go while the loops look after their logs."""

import pytest
import trio

from kbroker.testing.broker import MemoryBroker, memory_broker
from kbroker.testing.disk_nodes import Loss
from tests.handlers.asking import batch, create_topic, delete_records, delete_topic, list_offset, produce, read


@pytest.mark.parametrize("seed", range(4))
async def test_r15_topics_that_are_deleted_while_their_logs_are_flushed_harm_nobody(seed: int) -> None:
    """The flush of a log must neither meet its directory gone, nor write into that of its successor."""
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


async def test_retention_that_stood_in_line_behind_a_deletion_leaves_the_successor_alone(
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
    assert broker.node.broker.high_watermark(old) == old.log_start_offset, "nothing of the successor is told of it"
    await trio.sleep(400)
    assert await read(client, "t") == [b"new"]


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
async def test_r15_what_checkpoints_say_of_a_deleted_topic_does_not_hold_for_its_successor(loss: Loss) -> None:
    """Neither the start of its log, nor up to where it was durable, nor its high watermark."""
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
