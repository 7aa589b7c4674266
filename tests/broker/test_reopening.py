"""Partitions whose logs could not be created or opened are served without a restart once the disk works again."""

from __future__ import annotations

import errno

import trio

from kbroker.testing.disk import Fault, Operation
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, delete_records, delete_topic, list_offset, produce, read
from tests.handlers.groups import beat, find, form, join
from wire.errors import ErrorCode


def failed(broker: MemoryBroker) -> list[str]:
    assert broker.node.broker is not None
    return sorted(f"{topic}-{index}" for topic, index in broker.node.broker.replicas.failed)


async def test_d9_a_partition_is_created_once_the_disk_has_space() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/t-*", times=-1))
        await create_topic(client, "t", partitions=2)
        assert (await produce(client, "t", batch(b"no"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await trio.sleep(20)
        assert failed(broker) == ["t-0", "t-1"]
        broker.disk.heal()
        await trio.sleep(5)
        assert failed(broker) == []
        assert (await produce(client, "t", batch(b"yes"))).error_code == 0
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor) as broker:
        assert await read(await broker.connect(), "t") == [b"yes"]


async def test_d9_a_half_created_partition_is_completed() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="create", path="*/t-0/*.log", times=2))
        await create_topic(client, "t")
        assert failed(broker) == ["t-0"]
        await trio.sleep(12)
        assert failed(broker) == []
        assert (await produce(client, "t", batch(b"yes"))).error_code == 0
        assert await read(client, "t") == [b"yes"]


async def test_d13_a_log_that_failed_to_open_is_opened_later() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        for number in range(5):
            await produce(client, "t", batch(b"%d" % number))
        await delete_records(client, "t", 2)
    broker.disk.inject(Fault(errno.EMFILE, name="open", path="*/t-0/*.log", times=6))
    async with memory_broker(broker.disk) as broker:
        client = await broker.connect()
        assert failed(broker) == ["t-0"]
        assert (await produce(client, "t", batch(b"no"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await trio.sleep(60)
        assert failed(broker) == []
        assert [(await list_offset(client, "t", name))[1] for name in (-2, -1)] == [2, 5]
        assert await read(client, "t", offset=2) == [b"2", b"3", b"4"]


async def test_a_deleted_failed_partition_is_not_created() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/t-0", times=-1))
        await create_topic(client, "t")
        await delete_topic(client, "t")
        broker.disk.heal()
        await trio.sleep(20)
        assert failed(broker) == []
        assert not [path for path in broker.files() if path.startswith("t-0")]


async def test_r15_changing_topics_while_failed_partitions_are_retried_is_safe() -> None:
    async with memory_broker(latency_ms=4_000) as broker:
        client = await broker.connect()
        for _ in range(8):
            broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/t-0", times=2))
            await create_topic(client, "t")
            await trio.sleep(5)
            await delete_topic(client, "t")
        broker.disk.heal()
        await create_topic(client, "t")
        await trio.sleep(30)
        assert failed(broker) == []
        assert (await produce(client, "t", batch(b"yes"))).error_code == 0


async def test_groups_of_a_failed_partition_are_served_after_reopening() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/__consumer_offsets-*", times=-1))
        await find(client)
        assert len(failed(broker)) == 50
        assert (await join(client)).error_code != 0
        broker.disk.heal()
        await trio.sleep(6)
        joined = await form(client)
        assert joined.error_code == 0
        assert await beat(client, joined) == 0


async def test_many_partitions_are_created_and_removed_with_one_directory_sync() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        seen: list[str] = []

        def note(operation: Operation) -> None:
            if operation.name == "sync_directory" and operation.path == "/data":
                seen.append(operation.path)

        broker.disk.observer = note
        await create_topic(client, "t", partitions=30)
        assert len(seen) == 1
        await delete_topic(client, "t")
        assert len(seen) == 2


async def test_d7_partitions_created_together_survive_a_power_loss() -> None:
    for seed in range(4):
        async with memory_broker(stops_cleanly=False) as broker:
            client = await broker.connect()
            await create_topic(client, "t", partitions=5, settings={"flush.messages": 1})
            for index in range(5):
                await produce(client, "t", batch(b"%d" % index), partition=index)
            survivor = broker.disk.crash(Loss.SECTORS, seed=seed)
        async with memory_broker(survivor) as broker:
            client = await broker.connect()
            for index in range(5):
                assert await read(client, "t", partition=index) == [b"%d" % index]


async def test_d9_a_tiered_partition_created_late_is_tiered_at_once() -> None:
    settings = {
        "remote.log.manager.task.interval.ms": 100,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
    }
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/t-0", times=-1))
        await create_topic(client, "t", settings={"remote.storage.enable": "true", "segment.bytes": 400})
        await trio.sleep(20)
        assert failed(broker) == ["t-0"]
        broker.disk.heal()
        await trio.sleep(6)
        assert failed(broker) == []
        assert broker.node.broker is not None
        assert broker.node.broker.replicas.partitions["t", 0].remote is not None, "no further image is needed"
        for _ in range(3):
            assert (await produce(client, "t", batch(b"x" * 300))).error_code == 0
        await trio.sleep(2)
        assert (await list_offset(client, "t", -5))[:2] == (0, 1)
