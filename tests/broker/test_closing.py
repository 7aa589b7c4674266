"""Shutdown of a node with many partitions."""

from kbroker.testing.disk import Operation
from kbroker.testing.memory_node import memory_broker
from tests.handlers.asking import batch, create_topic, produce, read


async def test_closing_skips_empty_logs_and_syncs_names_once() -> None:
    seen: list[str] = []

    def note(operation: Operation) -> None:
        if operation.name.startswith("sync") and "/t-" in operation.path:
            seen.append(f"{operation.name} {operation.path}")

    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t", partitions=20)
        for index in range(3):
            await produce(client, "t", batch(b"x"), partition=index)
        broker.disk.observer = note
    assert sorted(line for line in seen if line.startswith("sync_directory")) == [
        f"sync_directory /data/t-{index}" for index in range(3)
    ]
    broker.disk.observer = None
    assert "/data/.kafka_cleanshutdown" in broker.disk.image()
    async with memory_broker(broker.disk) as broker:
        for index in range(4):
            assert await read(await broker.connect(), "t", partition=index) == ([b"x"] if index < 3 else [])
