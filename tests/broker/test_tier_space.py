"""A disk that is nearly full takes no more records, and is emptied by the tier all the same."""

from __future__ import annotations

import errno

from kbroker.testing.broker import memory_broker
from kbroker.testing.disk import Fault
from tests.broker.test_tier import QUICK, TIERED, fill, local_start, read_all, until, value
from tests.handlers.asking import batch, create_topic, produce
from wire.errors import ErrorCode

MEGABYTE = 1 << 20


async def test_a_disk_that_is_nearly_full_is_emptied_by_copying_to_the_tier() -> None:
    """The tier was out for a while; what it has to write down of each copy goes beyond the floor for clients."""
    async with memory_broker(settings={**QUICK, "kbroker.min.free.bytes": MEGABYTE}) as broker:
        client = await broker.connect()
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
