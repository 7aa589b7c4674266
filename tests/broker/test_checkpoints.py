"""Checkpoints are written at the intervals of Kafka's settings, one at a time."""

import trio

from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, produce


def lines(broker: MemoryBroker, name: str) -> list[str]:
    """The partitions in a checkpoint file, without the metadata log; empty if there is no file."""
    path = f"/data/{name}"
    if not broker.disk.exists(path):
        return []
    text = broker.disk.open(path).pread(broker.disk.size(path), 0).decode()
    return [line for line in text.splitlines()[2:] if not line.startswith("__")]


async def test_each_checkpoint_is_written_at_its_interval(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t", settings={"flush.messages": 1})
    for _ in range(8):
        await produce(client, "t", batch(b"x"))
    await trio.sleep(6)
    assert lines(broker, "replication-offset-checkpoint") == ["t 0 8"]
    assert lines(broker, "recovery-point-offset-checkpoint") == []
    await trio.sleep(60)
    assert lines(broker, "recovery-point-offset-checkpoint") == ["t 0 8"]


async def test_deleted_records_are_in_the_checkpoint_before_the_reply(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    for _ in range(8):
        await produce(client, "t", batch(b"x"))
    await delete_records(client, "t", 5)
    assert lines(broker, "log-start-offset-checkpoint") == ["t 0 5"]


async def test_d9_a_checkpoint_that_fails_on_a_full_disk_is_retried(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"x"))
    times = 17  # more failures than half of the reserve has slices
    broker.disk.inject(Fault(28, name="write", path="*replication-offset-checkpoint*", times=times))
    await trio.sleep(6)
    assert lines(broker, "replication-offset-checkpoint") == []
    await trio.sleep(5)
    assert lines(broker, "replication-offset-checkpoint") == ["t 0 1"]


async def test_a_stop_writes_high_watermarks() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        for _ in range(8):
            await produce(client, "t", batch(b"x"))
    assert "t 0 8" in lines(broker, "replication-offset-checkpoint")
