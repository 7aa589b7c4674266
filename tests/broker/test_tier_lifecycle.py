"""A whole node with tiered topics, in memory: copies to the tier, reads from it, and deletions."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import trio

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from kbroker.web.health import problems, ready
from tests.controller.injected import inject
from tests.handlers.asking import (
    BROKER,
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
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.stored.metadata import FeatureLevelRecord
from wire.types import ZERO_UUID

TIER = "/data-tier"
EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -4, -5
QUICK = {
    "remote.log.manager.task.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
}
TIERED = {"remote.storage.enable": "true", "segment.bytes": 400, "local.retention.bytes": 1}
"""Each batch of `value` is a segment, and goes from here as soon as the tier has it."""


def value(number: int) -> bytes:
    return b"%08d" % number + b"x" * 300


async def fill(client: Client, topic: str, count: int, *, start: int = 0, partition: int = 0) -> None:
    for number in range(start, start + count):
        answer = await produce(client, topic, batch(value(number)), partition=partition)
        assert (answer.error_code, answer.base_offset) == (0, number)


async def read_all(client: Client, topic: str, count: int, *, start: int = 0, partition: int = 0) -> None:
    """Read records one by one, each with a Fetch from its offset, and compare each."""
    for number in range(start, count):
        assert (await read(client, topic, partition=partition, offset=number))[0] == value(number)


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time."""
    for _ in range(2_000):
        if condition():
            return
        await trio.sleep(0.1)
    raise AssertionError("it did not happen")


def segments(broker: MemoryBroker, topic: str) -> int:
    """The number of segments in the tier's directory, of topics with this name."""
    found = broker.disk.image(TIER) if broker.disk.exists(TIER) else {}
    return sum(path.endswith(".manifest.json") and path.startswith(f"{TIER}/{topic}-") for path in found)


def objects(broker: MemoryBroker) -> list[str]:
    """Every file in the tier's directory."""
    found = broker.disk.image(TIER) if broker.disk.exists(TIER) else {}
    return [path for path, data in found.items() if data is not None]


def local_start(broker: MemoryBroker, topic: str, partition: int = 0) -> int:
    assert broker.node.broker is not None
    return broker.node.broker.replicas.partitions[topic, partition].log.local_log_start_offset


async def alter(
    client: Client, name: str, changes: Mapping[str, object | None], *, resource: int = TOPIC
) -> tuple[int, str | None]:
    return await alter_configs(client, resource, name, changes)


def test_without_tiered_topics_nothing_of_the_tier_is_imported() -> None:
    code = "import sys, kbroker.node; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if name.startswith(("kbroker.tiered.", "minio"))] == []


async def test_without_tiered_topics_nothing_is_created() -> None:
    """KAFKA-15432: topics that are not tiered cause no work."""
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"segment.bytes": 400})
        await fill(client, "t", 5)
        await delete_topic(client, "t")
        node = broker.node.broker
        assert node is not None
        assert node.tier.manager is None
        assert REMOTE_LOG_METADATA_TOPIC not in node.image.topics_by_name
        assert not broker.disk.exists(TIER)
        assert not [name for name in broker.files() if name.startswith("remote-")]


async def test_segments_are_copied_and_readable_from_offset_0() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 10)
        await until(lambda: local_start(broker, "t") == 9)
        assert segments(broker, "t") == 9
        await read_all(client, "t", 10)
        assert (await list_offset(client, "t", EARLIEST))[1] == 0
        assert (await list_offset(client, "t", EARLIEST_LOCAL))[1] == 9
        assert (await list_offset(client, "t", LATEST_TIERED))[1] == 8
        assert (await list_offset(client, "t", LATEST))[1] == 10


async def test_the_metadata_topic_is_created_as_in_kafka() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 3)
        await until(lambda: segments(broker, "t") == 2)
        assert broker.node.broker is not None
        image = broker.node.broker.image
        assert len(image.topics_by_name[REMOTE_LOG_METADATA_TOPIC].partitions) == 2
        assert image.topic_configs(REMOTE_LOG_METADATA_TOPIC) == {
            "cleanup.policy": "delete",
            "min.insync.replicas": "1",
            "remote.storage.enable": "false",
            "retention.ms": "-1",
        }


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
async def test_tiering_continues_after_a_restart(cleanly: bool) -> None:
    """KAFKA-15351, KAFKA-16146: a log start below the first local segment is kept over a restart."""
    async with memory_broker(settings=QUICK, stops_cleanly=cleanly) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 6)
        await until(lambda: local_start(broker, "t") == 5)
        disk = broker.disk if cleanly else broker.disk.crash()
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        assert (await list_offset(client, "t", EARLIEST))[1] == 0
        await read_all(client, "t", 6)
        await fill(client, "t", 4, start=6)
        await until(lambda: local_start(broker, "t") == 9)
        await read_all(client, "t", 10)
        assert segments(broker, "t") == 9


async def test_a_deleted_topic_leaves_nothing_in_the_tier() -> None:
    """KAFKA-15130."""
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        for _ in range(2):
            await create_topic(client, "t", partitions=2, settings=TIERED)
            await fill(client, "t", 4)
            await fill(client, "t", 3, partition=1)
            await until(lambda: segments(broker, "t") == 5)
            await read_all(client, "t", 4)
            await delete_topic(client, "t")
            await until(lambda: not objects(broker))


async def test_a_deletion_interrupted_by_a_crash_is_finished() -> None:
    """KAFKA-15130, with a crash between the deletion of the topic and that of its objects."""
    async with memory_broker(settings=QUICK, stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 4)
        await until(lambda: segments(broker, "t") == 3)
        await delete_topic(client, "t")
        disk = broker.disk.crash()
    async with memory_broker(disk, settings=QUICK) as broker:
        await until(lambda: not objects(broker))


async def test_a_live_topic_can_enter_and_leave_the_tier() -> None:
    """KAFKA-15290: a live topic is enabled, disabled with its remote data, and enabled again."""
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"segment.bytes": 400, "retention.ms": -1})
        await fill(client, "t", 5)
        assert await alter(client, "t", {"remote.storage.enable": "true", "local.retention.bytes": "1"}) == (0, None)
        await until(lambda: local_start(broker, "t") == 4)
        await read_all(client, "t", 5)

        code, _ = await alter(client, "t", {"remote.storage.enable": "false"})
        assert code == ErrorCode.INVALID_CONFIG
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        assert await alter(client, "t", off) == (0, None)
        await until(lambda: not objects(broker))
        assert (await list_offset(client, "t", EARLIEST))[1] == 4
        await read_all(client, "t", 5, start=4)

        assert await alter(client, "t", {"remote.storage.enable": "true"}) == (0, None)
        await fill(client, "t", 3, start=5)
        await until(lambda: local_start(broker, "t") == 7)
        await read_all(client, "t", 8, start=4)


async def test_a_read_only_topic_keeps_its_remote_data() -> None:
    """KIP-950, KAFKA-17236: with copying disabled, local deletion does not wait for the tier."""
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 4)
        await until(lambda: local_start(broker, "t") == 3)
        assert await alter(client, "t", {"remote.log.copy.disable": "true", "local.retention.bytes": None}) == (0, None)
        await fill(client, "t", 4, start=4)
        await trio.sleep(5)
        assert segments(broker, "t") == 3
        await read_all(client, "t", 8)


async def test_deleted_records_are_deleted_from_the_tier() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 6)
        await until(lambda: local_start(broker, "t") == 5)
        assert await delete_records(client, "t", 3) == (0, 3)
        await until(lambda: segments(broker, "t") == 2)
        assert (await list_offset(client, "t", EARLIEST))[1] == 3
        await read_all(client, "t", 6, start=3)


async def test_new_partitions_of_a_tiered_topic_are_tiered() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 3)
        more = CreatePartitionsTopic(name="t", count=3, assignments=None)
        answer = await client.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1000, validate_only=False))
        assert answer.results[0].error_code == 0
        for partition in (1, 2):
            await fill(client, "t", 3, partition=partition)
        await until(lambda: all(local_start(broker, "t", partition) == 2 for partition in range(3)))
        for partition in range(3):
            await read_all(client, "t", 3, partition=partition)


async def test_a_later_broker_policy_untiers_no_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Loaded as an untiered log, it would start at its local log."""
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 6)
        await until(lambda: local_start(broker, "t") == 5)
    async with memory_broker(disk, settings={**QUICK, "log.cleanup.policy": "compact"}, seed=1) as broker:
        client = await broker.connect()
        await fill(client, "t", 6, start=6)
        await until(lambda: local_start(broker, "t") == 11)
        assert (await list_offset(client, "t", EARLIEST))[1] == 0
        await read_all(client, "t", 12)
    said = [one for one in caplog.records if "is not compacted" in one.getMessage()]
    assert [one.levelname for one in said] == ["WARNING"]


async def test_disabling_the_tier_of_tiered_topics_refuses_the_start() -> None:
    """KAFKA-15267."""
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        await create_topic(await broker.connect(), "orders", settings=TIERED)
    off = {**QUICK, "remote.log.storage.system.enable": "false"}
    with pytest.raises(ExceptionGroup) as caught:
        async with memory_broker(disk, settings=off):
            pass
    failure = caught.value.exceptions[0]
    assert isinstance(failure, NodeFailed)
    assert str(failure) == (
        "You have to delete all topics with the property remote.storage.enable=true before disabling tiered storage "
        "cluster-wide: orders"
    )
    async with memory_broker(disk, settings=QUICK) as broker:
        await delete_topic(await broker.connect(), "orders")
    async with memory_broker(disk, settings=off) as broker:
        assert broker.node.is_serving


async def test_nothing_is_tiered_below_the_required_metadata_version() -> None:
    """Directories of an older cluster may have such a version; the tier starts when the level is raised."""

    async def set_level(broker: MemoryBroker, level: int) -> None:
        assert broker.node.broker is not None
        record = FeatureLevelRecord(name="metadata.version", feature_level=level)
        await inject(broker.node.broker.controller, lambda: [record])

    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"segment.bytes": 400})
        await set_level(broker, 8)
        assert await alter(client, "t", {"remote.storage.enable": "true", "local.retention.bytes": 1}) == (0, None)
        await fill(client, "t", 4)
        await trio.sleep(5)
        assert not objects(broker)
        assert local_start(broker, "t") == 0
        await set_level(broker, 21)
        await until(lambda: local_start(broker, "t") == 3)
        await read_all(client, "t", 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rsm.config.dri": "/elsewhere"}, "dri"),
        ({"remote.log.storage.manager.class.name": "nobodys"}, "there is no such manager"),
        ({"remote.log.metadata.manager.class.name": "nobodys"}, "there is no such manager"),
    ],
)
async def test_an_unusable_plug_in_refuses_the_start(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with memory_broker(settings=settings):
            pass
    assert message in str(caught.value.exceptions[0])


async def test_the_metadata_topic_cannot_be_deleted_or_changed() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 2)
        await until(lambda: segments(broker, "t") == 1)
        named = DeleteTopicState(name=REMOTE_LOG_METADATA_TOPIC, topic_id=ZERO_UUID)
        answer = await client.ask(DeleteTopicsRequest(topics=[named], topic_names=[], timeout_ms=1000))
        assert answer.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        more = CreatePartitionsTopic(name=REMOTE_LOG_METADATA_TOPIC, count=9, assignments=None)
        grown = await client.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1000, validate_only=False))
        assert grown.results[0].error_code == ErrorCode.INVALID_REQUEST
        code, _ = await alter(client, REMOTE_LOG_METADATA_TOPIC, {"cleanup.policy": "compact"})
        assert code == ErrorCode.INVALID_CONFIG
        code, _ = await delete_records(client, REMOTE_LOG_METADATA_TOPIC, 1)
        assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
        # As in Kafka, whose own manager logs this for its topic; there is nothing to do.
        assert (await alter(client, REMOTE_LOG_METADATA_TOPIC, {"remote.storage.enable": "true"}))[0] == 0
        await fill(client, "t", 2, start=2)
        await until(lambda: segments(broker, "t") == 3)
        assert segments(broker, REMOTE_LOG_METADATA_TOPIC) == 0


async def test_the_metadata_topic_keeps_its_number_of_partitions() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 4)
        await until(lambda: local_start(broker, "t") == 3)
    other = {**QUICK, "rlmm.config.remote.log.metadata.topic.num.partitions": 7}
    async with memory_broker(disk, settings=other) as broker:
        client = await broker.connect()
        await read_all(client, "t", 4)
        await fill(client, "t", 3, start=4)
        await until(lambda: local_start(broker, "t") == 6)
        assert problems(broker.node) == []


async def test_a_broker_is_ready_once_the_metadata_are_read() -> None:
    """KAFKA-15260, KAFKA-19426: not earlier, and without a time limit. No local segment is deleted before."""
    disk = SimulatedDisk()
    without = {**QUICK, "rlmm.config.remote.log.metadata.topic.replication.factor": 3}
    async with memory_broker(disk, settings=without) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 4)
        await trio.sleep(600)
        assert [one for one in problems(broker.node) if one.startswith("tiered topics: __remote_log_metadata cannot")]
        assert local_start(broker, "t") == 0
        await read_all(client, "t", 4)
    async with memory_broker(disk, settings=QUICK) as broker:
        await until(lambda: local_start(broker, "t") == 3)
        assert problems(broker.node) == []


async def test_an_outage_is_reported_and_the_backlog_drains_afterwards() -> None:
    async with memory_broker(settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        await fill(client, "t", 3)
        await until(lambda: local_start(broker, "t") == 2)
        broker.disk.inject(Fault(errno.ENOSPC, path=f"{TIER}/*", times=-1))
        await fill(client, "t", 4, start=3)
        await trio.sleep(60)
        assert local_start(broker, "t") == 2
        page = json.loads(b"".join(ready(broker.node).pieces))
        assert page["status"] == "ready"
        assert [one for one in page["warnings"] if one.startswith("tier operations fail for 1 partitions")]
        broker.disk.heal()
        await until(lambda: local_start(broker, "t") == 6)
        assert json.loads(b"".join(ready(broker.node).pieces))["warnings"] == []
        await read_all(client, "t", 7)


async def test_a_dynamic_quota_change_survives_a_restart() -> None:
    """KAFKA-16353."""
    disk = SimulatedDisk()
    key = "remote.log.manager.copy.max.bytes.per.second"
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings=TIERED)
        assert await alter(client, "", {key: 50}, resource=BROKER) == (0, None)
    async with memory_broker(disk, settings=QUICK) as broker:
        client = await broker.connect()
        began = trio.current_time()
        await fill(client, "t", 6)
        await until(lambda: local_start(broker, "t") == 5)
        assert trio.current_time() - began > 10, "2 kB at 50 bytes per second, with a burst of 11 seconds"
        assert await alter(client, "", {key: None}, resource=BROKER) == (0, None)
        began = trio.current_time()
        await fill(client, "t", 6, start=6)
        await until(lambda: local_start(broker, "t") == 11)
        assert trio.current_time() - began < 2
