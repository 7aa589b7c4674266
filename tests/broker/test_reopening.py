"""Partitions whose logs could not be made or opened are served again without a restart, once the disk lets them."""

from __future__ import annotations

import errno

import trio

from kbroker.testing.broker import MemoryBroker, memory_broker
from kbroker.testing.disk import Fault, Operation
from kbroker.testing.disk_nodes import Loss
from tests.handlers.asking import batch, create_topic, delete_records, delete_topic, list_offset, produce, read
from tests.handlers.groups import beat, find, form, join
from wire.errors import ErrorCode


def failed(broker: MemoryBroker) -> list[str]:
    assert broker.node.broker is not None
    return sorted(f"{topic}-{index}" for topic, index in broker.node.broker.replicas.failed)


async def test_d9_a_partition_for_which_there_was_no_space_is_made_when_there_is() -> None:
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


async def test_d9_a_partition_that_was_made_by_half_is_completed() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="create", path="*/t-0/*.log", times=2))
        await create_topic(client, "t")
        assert failed(broker) == ["t-0"]
        await trio.sleep(12)
        assert failed(broker) == []
        assert (await produce(client, "t", batch(b"yes"))).error_code == 0
        assert await read(client, "t") == [b"yes"]


async def test_d13_a_log_that_could_not_be_opened_at_the_start_is_opened_later_with_all_that_it_held() -> None:
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


async def test_a_failed_partition_that_is_deleted_is_not_made_any_more() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        broker.disk.inject(Fault(errno.ENOSPC, name="make_directory", path="*/t-0", times=-1))
        await create_topic(client, "t")
        await delete_topic(client, "t")
        broker.disk.heal()
        await trio.sleep(20)
        assert failed(broker) == []
        assert not [path for path in broker.files() if path.startswith("t-0")]


async def test_r15_topics_that_come_and_go_while_failed_partitions_are_tried_again_harm_nobody() -> None:
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


async def test_groups_of_a_partition_that_failed_are_coordinated_once_it_is_there() -> None:
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


async def test_many_partitions_are_made_with_one_sync_of_their_names_and_removed_with_one() -> None:
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


async def test_d7_partitions_that_were_made_together_survive_the_loss_of_power() -> None:
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


async def test_d9_a_tiered_partition_for_which_there_was_no_space_is_tiered_as_soon_as_it_is_there() -> None:
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
        assert broker.node.broker.replicas.partitions["t", 0].remote is not None, "no image has come meanwhile"
        for _ in range(3):
            assert (await produce(client, "t", batch(b"x" * 300))).error_code == 0
        await trio.sleep(2)
        assert (await list_offset(client, "t", -5))[:2] == (0, 1)
