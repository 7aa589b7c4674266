"""The tier's metadata in a whole node: records of other clients, a torn log, and reading at a restart."""

from __future__ import annotations

import pytest

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from kbroker.tiered.metadata_follower import MetadataCounters
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.web.exposition import render
from tests.broker.test_tier_lifecycle import QUICK, TIERED, fill, local_start, read_all, segments, until
from tests.handlers.asking import batch, create_topic, list_offset, produce
from wire.errors import ErrorCode

ONE = {**QUICK, "rlmm.config.remote.log.metadata.topic.num.partitions": 1}
LATEST_TIERED = -5
HOME = f"/data/{REMOTE_LOG_METADATA_TOPIC}-0"


def counters(broker: MemoryBroker) -> MetadataCounters:
    assert broker.node.broker is not None
    manager = broker.node.broker.tier.manager
    assert manager is not None
    metadata = manager.tools.metadata
    assert isinstance(metadata, TopicRemoteLogMetadataManager)
    return metadata.counters


async def tiered(broker: MemoryBroker, count: int) -> None:
    """Have this number of segments in the tier, and one more batch locally."""
    client = await broker.connect()
    await create_topic(client, "t", settings=TIERED)
    await fill(client, "t", count + 1)
    await until(lambda: local_start(broker, "t") == count)


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
async def test_a_clean_restart_reads_no_metadata_again(cleanly: bool) -> None:
    async with memory_broker(settings=ONE, stops_cleanly=cleanly) as broker:
        await tiered(broker, 5)
        disk = broker.disk if cleanly else broker.disk.crash()
    assert disk.exists(f"{HOME}/remote_log_snapshot") == cleanly
    async with memory_broker(disk, settings=ONE) as broker:
        client = await broker.connect()
        await until(lambda: broker.node.broker is not None and not broker.node.broker.tier.waits_for)
        assert (await list_offset(client, "t", LATEST_TIERED))[1] == 4
        assert counters(broker).events_read == (0 if cleanly else 10)
        await read_all(client, "t", 6)


async def test_foreign_records_do_not_stop_tiering() -> None:
    """In Apache Kafka one such record stops the uploads of every partition for good."""
    async with memory_broker(settings=ONE) as broker:
        await tiered(broker, 3)
        client = await broker.connect()
        assert broker.node.broker is not None
        for value in (b"", b"not a record", b"\x01\x00\x00", b"\x01\x09\x00"):
            answer = await produce(client, REMOTE_LOG_METADATA_TOPIC, batch(value))
            assert answer.error_code == ErrorCode.INVALID_RECORD
            # An older release accepted it, and so does Apache Kafka.
            await broker.node.broker.append(REMOTE_LOG_METADATA_TOPIC, 0, batch(value), version=11, all_in_sync=True)
        await fill(client, "t", 3, start=4)
        await until(lambda: local_start(broker, "t") == 6)
        assert counters(broker).skipped_records == 4
        assert b"\nkbroker_tier_metadata_skipped_records_total 4.0\n" in b"".join(render(broker.node))
        disk = broker.disk
    disk.unlink(f"{HOME}/remote_log_snapshot")
    async with memory_broker(disk, settings=ONE) as broker:
        client = await broker.connect()
        await read_all(client, "t", 7)
        await fill(client, "t", 3, start=7)
        await until(lambda: local_start(broker, "t") == 9)
        assert counters(broker).skipped_records == 4


def latest_tiered(broker: MemoryBroker) -> int | None:
    assert broker.node.broker is not None
    remote = broker.node.broker.replicas.partitions["t", 0].remote
    return None if remote is None else remote.highest_offset_in_remote_storage


async def test_m10_a_segment_with_a_torn_record_is_copied_again() -> None:
    disk = SimulatedDisk()
    kept_here = {key: value for key, value in TIERED.items() if key != "local.retention.bytes"}
    async with memory_broker(disk, settings=ONE) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=kept_here)
        await fill(client, "t", 6)
        await until(lambda: segments(broker, "t") == 5)
        await until(lambda: latest_tiered(broker) == 4)
    disk.unlink(f"{HOME}/remote_log_snapshot")
    file = disk.open(f"{HOME}/{0:020}.log")
    file.pwrite(b"\xff", file.size() - 10)  # the last change: the fifth copy is finished
    async with memory_broker(disk, settings=ONE) as broker:
        client = await broker.connect()
        await until(lambda: latest_tiered(broker) == 4)
        assert counters(broker).skipped_records == 1
        assert segments(broker, "t") == 5, "the unconfirmed copy was deleted"
        await fill(client, "t", 3, start=6)
        await until(lambda: latest_tiered(broker) == 7)
        await read_all(client, "t", 9)
