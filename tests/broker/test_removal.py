"""Topics that go while the loops look after their logs."""

import trio

from kbroker.testing.broker import MemoryBroker
from tests.handlers.asking import batch, create_topic, delete_topic, list_offset, produce, read


async def test_r15_topics_that_are_deleted_while_their_logs_are_flushed_harm_nobody(broker: MemoryBroker) -> None:
    """The flush of a log must neither meet its directory gone, nor write into that of its successor."""
    admin, writer = await broker.connect(), await broker.connect()
    names = [f"t{number}" for number in range(8)]
    for name in names:
        await create_topic(admin, name, settings={"flush.ms": 1})

    async def fill() -> None:
        for number in range(400):
            await produce(writer, names[number % len(names)], batch(b"x" * 100))
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        for round_ in range(3):
            await trio.sleep_until(1.0 + round_)
            for name in names:
                await delete_topic(admin, name)
                await create_topic(admin, name, settings={"flush.ms": 1})
    assert broker.node.broker is not None
    assert broker.node.broker.replicas.directory.state.failure is None
    for name in names:
        end = (await list_offset(admin, name, -1))[1]
        assert end > 0
        assert await read(admin, name) == [b"x" * 100] * end


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
