"""A nearly full disk accepts no more records, and the tier still frees its space."""

from __future__ import annotations

import errno

import pytest
import trio

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.testing.disk import Fault
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.broker.test_tier_lifecycle import QUICK, TIERED, fill, local_start, read_all, until, value
from tests.handlers.asking import batch, create_topic, delete_records, produce
from wire.errors import ErrorCode

MEGABYTE = 1 << 20


async def test_copying_to_the_tier_frees_a_nearly_full_disk() -> None:
    """After an outage of the tier, the metadata of each copy may use the space below the floor for clients."""
    async with memory_broker(settings={**QUICK, "kbroker.min.free.bytes": MEGABYTE}) as broker:
        client = await broker.connect()
        broker.disk.other_file_systems = ("/data-tier",)
        await create_topic(client, "t", settings=TIERED)
        broker.disk.inject(Fault(errno.ENOSPC, name="write", path="/data-tier/*", times=100))
        await fill(client, "t", 10)
        assert local_start(broker, "t") == 0
        broker.disk.capacity_bytes = 1 << 40
        used = broker.disk.capacity_bytes - broker.disk.free_bytes("/data")
        broker.disk.capacity_bytes = used + MEGABYTE // 2
        node = broker.node.broker
        assert node is not None
        state = node.replicas.directory.state
        await until(lambda: state.is_short_of_space)
        answer = await produce(client, "t", batch(value(10)))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert local_start(broker, "t") < 9
        await until(lambda: local_start(broker, "t") == 9)
        assert state.is_short_of_space
        await read_all(client, "t", 10)


def records_of_metadata(broker: MemoryBroker) -> int:
    """The number of records in the tier's metadata topic."""
    assert broker.node.broker is not None
    partitions = broker.node.broker.replicas.partitions
    return sum(one.log.log_end_offset for key, one in partitions.items() if key[0] == REMOTE_LOG_METADATA_TOPIC)


@pytest.mark.long
async def test_m1_a_full_store_costs_one_metadata_record() -> None:
    settings = {**QUICK, "remote.log.manager.task.interval.ms": 30_000, "log.retention.check.interval.ms": 30_000}
    async with memory_broker(settings=settings) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        fault = Fault(errno.EDQUOT, name="write", path="/data-tier/*", times=-1)
        broker.disk.inject(fault)
        await fill(client, "t", 3)
        await trio.sleep(3_600)
        assert fault.times < -100
        assert records_of_metadata(broker) == 1
        assert local_start(broker, "t") == 0
        broker.disk.heal()
        await until(lambda: local_start(broker, "t") == 2)
        assert records_of_metadata(broker) == 4  # the failed attempt is the one that succeeds
        await read_all(await broker.connect(), "t", 3)


async def test_m1_a_failed_copy_of_an_expired_segment_is_deleted() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        broker.disk.inject(Fault(errno.ENOSPC, name="write", path="/data-tier/*", times=-1))
        await fill(client, "t", 3)
        await trio.sleep(10)
        assert records_of_metadata(broker) == 1
        assert await delete_records(client, "t", 2) == (0, 2)
        await trio.sleep(10)
        assert records_of_metadata(broker) == 3
        broker.disk.heal()
        await fill(client, "t", 3, start=3)
        await until(lambda: local_start(broker, "t") == 5)


@pytest.mark.long
async def test_d9_copies_leave_the_floor_free_on_a_shared_disk() -> None:
    async with memory_broker(settings={**QUICK, "kbroker.min.free.bytes": MEGABYTE}) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        broker.disk.capacity_bytes = 1 << 40
        used = broker.disk.capacity_bytes - broker.disk.free_bytes("/data")
        broker.disk.capacity_bytes = used + MEGABYTE + 3_800
        await fill(client, "t", 5)
        await trio.sleep(60)
        assert broker.disk.free_bytes("/data") >= MEGABYTE - 1_000  # indexes and checkpoints are not included
        assert local_start(broker, "t") < 4, "uncopied segments are kept"
        assert broker.node.broker is not None
        remote = broker.node.broker.replicas.partitions["t", 0].remote
        assert remote is not None
        assert "kbroker.min.free.bytes=1048576 stay free" in remote.last_error
        before = records_of_metadata(broker)
        await trio.sleep(600)
        assert records_of_metadata(broker) == before
        broker.disk.capacity_bytes = None
        await until(lambda: local_start(broker, "t") == 4)
        await until(lambda: not remote.last_error)
        await read_all(await broker.connect(), "t", 5)
