"""On a disk without a free byte, topics can be deleted, and the node keeps running, stops and starts."""

from __future__ import annotations

import errno

import pytest
import trio

from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import (
    TOPIC,
    alter_configs,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    list_offset,
    produce,
    read,
)
from wire.errors import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.types import ZERO_UUID

TOPICS = 300


def fill_up(disk: SimulatedDisk) -> None:
    """Let another file use all free space."""
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes -= disk.free_bytes("/data")


async def fill_again_and_again(disk: SimulatedDisk) -> None:
    while True:
        fill_up(disk)
        await trio.sleep(0.5)


def deleting(name: str) -> DeleteTopicsRequest:
    topic = DeleteTopicState(name=name, topic_id=ZERO_UUID)
    return DeleteTopicsRequest(topics=[topic], topic_names=[], timeout_ms=1000)


async def create_topics(broker: MemoryBroker, names: list[str]) -> None:
    client = await broker.connect()
    topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for n in names]
    answer = await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000))
    assert {one.error_code for one in answer.topics} == {0}


@pytest.mark.long
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_d9_hundreds_of_topics_are_deleted_on_a_full_disk(error: int) -> None:
    async with memory_broker() as broker:
        names = [f"t{number}" for number in range(TOPICS)]
        await create_topics(broker, names)
        client = await broker.connect()
        broker.disk.full_errno = error
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill_again_and_again, broker.disk)
            await trio.sleep(2)
            for name in names:
                await delete_topic(client, name)
            await trio.sleep(120)
            assert not [path for path in broker.files() if path.startswith("t")]
            nursery.cancel_scope.cancel()
    async with memory_broker(broker.disk) as broker:
        assert broker.node.broker is not None
        assert not [name for name in broker.node.broker.image.topics_by_name if name.startswith("t")]


@pytest.mark.parametrize("stops_cleanly", [True, False])
async def test_d9_a_node_starts_and_stops_on_a_full_disk(stops_cleanly: bool) -> None:
    async with memory_broker(stops_cleanly=stops_cleanly) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"index.interval.bytes": 10})
        for number in range(20):
            await produce(client, "t", batch(b"%d" % number))
        fill_up(broker.disk)
    disk = broker.disk.crash(Loss.PROCESS_DEATH)
    for _ in range(10):
        fill_up(disk)
        async with memory_broker(disk, stops_cleanly=stops_cleanly) as broker:
            assert len(await read(await broker.connect(), "t")) == 20
        disk = disk.crash(Loss.PROCESS_DEATH)
    disk.heal()
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        assert (await produce(client, "t", batch(b"more"))).error_code == 0
        await trio.sleep(2)
        assert broker.node.broker is not None
        reserve = broker.node.broker.replicas.directory.reserve
        assert reserve.held_bytes == reserve.size_bytes


QUICK = {
    "log.retention.check.interval.ms": 1_000,
    "log.flush.offset.checkpoint.interval.ms": 1_000,
    "log.flush.start.offset.checkpoint.interval.ms": 1_000,
    "replica.high.watermark.checkpoint.interval.ms": 1_000,
}
LIFE = ("write", "create", "rename", "make_directory")


async def live(disk: SimulatedDisk) -> None:
    """Start, delete a topic, accept records, flush, write checkpoints, delete segments, stop."""
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        await delete_topic(client, "gone")
        await produce(client, "t", batch(b"more"))
        await trio.sleep(4)


@pytest.mark.long
async def test_d9_no_write_on_a_full_disk_ends_the_node() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        for name in ("t", "gone"):
            await create_topic(client, name, settings={"segment.bytes": 1000, "retention.bytes": 2000})
            for number in range(30):
                await produce(client, name, batch(b"%d" % number * 40))
    seen: list[tuple[int, str]] = []
    disk = broker.disk.crash(Loss.PROCESS_DEATH)
    disk.observer = lambda one: seen.append((one.number, one.name)) if one.name in LIFE else None
    await live(disk)
    assert len(seen) > 50
    for number, name in seen:
        disk = broker.disk.crash(Loss.PROCESS_DEATH)
        disk.inject(Fault(errno.ENOSPC, number=number, name=name))
        await live(disk)
        async with memory_broker(disk) as after:
            assert (await list_offset(await after.connect(), "t", -1))[1] >= 30, number
            assert after.node.broker is not None
            assert "gone" not in after.node.broker.image.topics_by_name, number


async def test_d9_a_start_removes_deleted_partitions_before_it_writes() -> None:
    """There is no reserve, as in a directory of an earlier version."""
    settings = {"kbroker.metadata.reserve.bytes": 0}
    async with memory_broker(settings=settings, stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        for _ in range(10):
            await produce(client, "t", batch(b"x" * 1000))
        await delete_topic(client, "t")
    disk = broker.disk.crash(Loss.PROCESS_DEATH)
    fill_up(disk)
    async with memory_broker(disk, settings=settings) as broker:
        assert not [path for path in broker.files() if "-delete" in path]


async def test_a_first_start_without_space_for_the_reserve_is_refused() -> None:
    disk = SimulatedDisk(capacity_bytes=50_000)
    too_small = pytest.RaisesExc(NodeFailed, match=r"or lower kbroker\.metadata\.reserve\.bytes")
    with pytest.RaisesGroup(too_small, flatten_subgroups=True):
        async with memory_broker(disk):
            pass
    assert "/data/meta.properties" not in disk.image()
    async with memory_broker(disk, settings={"kbroker.metadata.reserve.bytes": 8192}):
        pass


async def test_changed_settings_leave_half_of_the_reserve_to_deletions() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        fill_up(broker.disk)
        await trio.sleep(2)
        refused = None
        for number in range(2_000):
            code, _ = await alter_configs(client, TOPIC, "t", {"retention.ms": number})
            if code:
                refused = ErrorCode(code)
                break
        assert refused is ErrorCode.KAFKA_STORAGE_ERROR
        await delete_topic(client, "t")


async def test_d9_decisions_without_space_or_reserve_fail_and_can_be_retried() -> None:
    async with memory_broker(settings={"kbroker.metadata.reserve.bytes": 0}) as broker:
        client = await broker.connect()
        for name in ("t", "u"):
            await create_topic(client, name)
        fill_up(broker.disk)
        await trio.sleep(2)
        for _ in range(3):
            answer = await client.ask(deleting("t"))
            assert answer.responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await list_offset(client, "t", -1))[1] == 0
        broker.disk.heal()
        await delete_topic(client, "t")
    async with memory_broker(broker.disk) as broker:
        assert broker.node.broker is not None
        assert set(broker.node.broker.image.topics_by_name) == {"u"}


async def test_d9_records_and_segments_are_deleted_on_a_full_disk() -> None:
    settings = {"log.retention.check.interval.ms": 1_000}
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        for name, more in (("t", {}), ("old", {"retention.ms": 1, "file.delete.delay.ms": 1_000})):
            await create_topic(client, name, settings={"segment.bytes": 1000, **more})
        fill_up(broker.disk)
        broker.disk.capacity_bytes = (broker.disk.capacity_bytes or 0) + 80_000
        for number in range(30):
            assert (await produce(client, "t", batch(b"%d" % number * 400))).error_code == 0
            assert (await produce(client, "old", batch(b"%d" % number * 400))).error_code == 0
        fill_up(broker.disk)
        broker.disk.inject(Fault(errno.ENOSPC, name="create", path="*/old-0/*", times=3))
        broker.disk.inject(Fault(errno.ENOSPC, name="rename", path="*/old-0/*", times=3))
        await trio.sleep(15)
        assert (await list_offset(client, "old", -2))[1] >= 29
        fill_up(broker.disk)
        assert await delete_records(client, "t", 20) == (0, 20)
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor) as broker:
        assert (await list_offset(await broker.connect(), "t", -2))[1] == 20
