"""Data that the metadata does not list: the metadata log is lost, empty, truncated or older than the logs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

import pytest
import trio

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.node import NodeFailed
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.broker.test_tier_lifecycle import QUICK, TIERED, fill, objects, read_all, segments, until
from tests.handlers.asking import batch, create_topic, delete_topic, produce, read
from wire.record_batch import RecordBatch

DATA = "/data"
METADATA = f"{DATA}/__cluster_metadata-0"
STRAY = re.compile(r"(.+)\.[0-9a-f]{32}-stray")

Files = Mapping[str, bytes | None]


def remove(disk: SimulatedDisk, path: str) -> None:
    """Remove a directory and its files, durably."""
    for name in disk.list(path):
        disk.unlink(f"{path}/{name}")
    disk.remove_directory(path)
    disk.sync_directory(DATA)


def restore(disk: SimulatedDisk, path: str, files: Files) -> None:
    """Replace a directory with an earlier copy."""
    if disk.exists(path):
        remove(disk, path)
    disk.make_directory(path)
    for name, data in files.items():
        if data is not None:
            file = disk.open(name, create=True)
            file.pwrite(data, 0)
            file.sync()
            file.close()
    disk.sync_directory(path)
    disk.sync_directory(DATA)


def cut(disk: SimulatedDisk, size: int) -> None:
    """Truncate the metadata log to `size` bytes."""
    file = disk.open(f"{METADATA}/{0:020d}.log")
    file.truncate(size)
    file.sync()
    file.close()


def strays(disk: SimulatedDisk) -> list[str]:
    """The original names of the stray directories."""
    return sorted(match[1] for name in disk.list(DATA) if (match := STRAY.fullmatch(name)) is not None)


def records_of(disk: SimulatedDisk, directory: str) -> list[bytes | None]:
    """The records in the first segment of a directory."""
    data = disk.image(directory)[f"{directory}/{0:020d}.log"] or b""
    found, position = [], 0
    while position < len(data):
        one = RecordBatch(data, position)
        found += [record.value for record in one.records()]
        position += one.size
    return found


async def a_broker_with(*topics: str, cleanly: bool = True) -> SimulatedDisk:
    """The disk of a stopped broker with these topics and one record in each."""
    async with memory_broker(stops_cleanly=cleanly) as broker:
        client = await broker.connect()
        for topic in topics:
            await create_topic(client, topic)
            await produce(client, topic, batch(topic.encode()))
        survivor = broker.disk
        if not cleanly:
            survivor = broker.disk.crash()
    return survivor


async def refusal(disk: SimulatedDisk) -> str:
    """The error of a broker that must refuse to start on a disk."""
    with pytest.raises(ExceptionGroup) as raised:
        async with memory_broker(disk):
            raise AssertionError("it started")
    failure = raised.value.exceptions[0]
    assert isinstance(failure, NodeFailed)
    return str(failure)


def empty_logs(disk: SimulatedDisk) -> None:
    cut(disk, 0)


def remove_all_files(disk: SimulatedDisk) -> None:
    restore(disk, METADATA, {})


def remove_directory(disk: SimulatedDisk) -> None:
    remove(disk, METADATA)


def tear_the_first_batch(disk: SimulatedDisk) -> None:
    cut(disk, 40)


LOSSES = [empty_logs, remove_all_files, remove_directory, tear_the_first_batch]


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("lose", LOSSES)
async def test_d14_a_start_without_the_metadata_of_existing_logs_is_refused(
    lose: Callable[[SimulatedDisk], None], cleanly: bool
) -> None:
    disk = await a_broker_with("orders", cleanly=cleanly)
    kept = disk.image(METADATA)
    for _ in range(2):
        lose(disk)
        was_clean = disk.exists(f"{DATA}/.kafka_cleanshutdown")
        said = await refusal(disk)
        if not cleanly or lose is not tear_the_first_batch:
            assert "__cluster_metadata-0" in said
            assert "restore" in said
        assert "\n" not in said
        assert disk.exists(f"{DATA}/.kafka_cleanshutdown") is was_clean, "a refused start changes nothing"
        restore(disk, METADATA, kept)
    async with memory_broker(disk) as broker:
        assert await read(await broker.connect(), "orders") == [b"orders"]


@pytest.mark.parametrize("lose", [empty_logs, remove_all_files, remove_directory])
async def test_a_lost_metadata_log_without_topics_is_detected(lose: Callable[[SimulatedDisk], None]) -> None:
    disk = await a_broker_with(cleanly=False)
    lose(disk)
    assert "__cluster_metadata-0" in await refusal(disk)


async def test_a_first_start_interrupted_anywhere_is_repeated() -> None:
    disk, survivors = SimulatedDisk(), list[SimulatedDisk]()
    disk.observer = lambda _: survivors.append(disk.crash(Loss.ONLY_SYNCED))
    async with memory_broker(disk):
        disk.observer = None
    assert len(survivors) > 20
    for survivor in survivors:
        async with memory_broker(survivor) as again:
            await create_topic(await again.connect(), "t")


async def test_d14_a_directory_outside_the_metadata_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = await a_broker_with("orders")
    older = disk.image(METADATA)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await create_topic(client, "newer", partitions=2)
        await produce(client, "newer", batch(b"newer"))
    newest = disk.image(METADATA)
    restore(disk, METADATA, older)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        assert await read(client, "orders") == [b"orders"]
        assert strays(disk) == ["newer-0", "newer-1"]
        assert broker.node.broker is not None
        assert broker.node.broker.replicas.directory.stray_count == 2
    assert [one.getMessage() for one in caplog.records if "stray" in one.getMessage()]
    names = [name for name in disk.list(DATA) if STRAY.fullmatch(name)]
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await create_topic(client, "newer")
        assert [name for name in disk.list(DATA) if STRAY.fullmatch(name)] == names, "later starts do not change it"
        await produce(client, "newer", batch(b"another"))
    # With the right metadata the partition is served again.
    remove(disk, f"{DATA}/newer-0")
    restore(disk, METADATA, newest)
    for name in names:
        disk.rename(f"{DATA}/{name}", f"{DATA}/{name.partition('.')[0]}")
    async with memory_broker(disk) as broker:
        assert await read(await broker.connect(), "newer") == [b"newer"]
        assert strays(disk) == []


async def test_many_strays_are_logged_in_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    disk = await a_broker_with("orders")
    older = disk.image(METADATA)
    async with memory_broker(disk) as broker:
        await create_topic(await broker.connect(), "newer", partitions=300)
    restore(disk, METADATA, older)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        async with memory_broker(disk):
            assert len(strays(disk)) == 300
    assert 0 < len(caplog.records) < 30


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
async def test_a_deletion_interrupted_by_a_kill_is_finished(loss: Loss) -> None:
    """For a kill at every operation of the deletion: either the topic exists, or its files are removed."""
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t", partitions=2, settings={"file.delete.delay.ms": 0})
        for name in ("t-0", "t-1"):
            # Sync the id, which is usually synced later: without it the owner of the directory is unknown.
            broker.disk.open(f"{DATA}/{name}/partition.metadata").sync()
            broker.disk.sync_directory(f"{DATA}/{name}")
        found: list[SimulatedDisk] = []
        broker.disk.observer = lambda _: found.append(broker.disk.crash(loss))
        await delete_topic(client, "t")
        broker.disk.observer = None
        found.append(broker.disk.crash(loss))
    assert len(found) > 3
    was_deleted = set()
    for disk in found:
        async with memory_broker(disk) as again:
            assert again.node.broker is not None
            is_there = "t" in again.node.broker.image.topics_by_name
            was_deleted.add(not is_there)
            assert strays(disk) == []
            assert {"t-0", "t-1"} & set(disk.list(DATA)) == ({"t-0", "t-1"} if is_there else set())
    assert was_deleted == {True, False}


async def test_a_topic_with_another_id_gets_no_old_data() -> None:
    """The metadata log has a topic with this name but another id: its data is not that in the directory."""
    disk = await a_broker_with("other")
    older = disk.image(METADATA)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await produce(client, "t", batch(b"first"))
    kept = disk.image(f"{DATA}/t-0")
    restore(disk, METADATA, older)
    async with memory_broker(disk, seed=7) as broker:
        await create_topic(await broker.connect(), "t")
    # Replace the files of the second topic with those of the first.
    restore(disk, f"{DATA}/t-0", kept)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        assert await read(client, "t") == []
        assert strays(disk) == ["t-0", "t-0"]
        for name in disk.list(DATA):
            if STRAY.fullmatch(name):
                assert records_of(disk, f"{DATA}/{name}") == [b"first"]


async def test_recreating_a_topic_before_a_kill_loses_only_old_data() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await produce(client, "t", batch(b"first"))
        kept = broker.disk.image(f"{DATA}/t-0")
        await delete_topic(client, "t")
        await create_topic(client, "t")
        disk = broker.disk.crash()
    restore(disk, f"{DATA}/t-0", kept)
    async with memory_broker(disk) as broker:
        assert await read(await broker.connect(), "t") == []
        assert strays(disk) == [], "the log says that this one was removed"


@pytest.mark.parametrize("name", ["t-7", "unknown-0"])
async def test_a_directory_that_was_renamed_by_hand_is_kept(name: str) -> None:
    disk = await a_broker_with("t")
    disk.rename(f"{DATA}/t-0", f"{DATA}/{name}")
    async with memory_broker(disk) as broker:
        assert await read(await broker.connect(), "t") == []
        assert strays(disk) == [name]


async def test_a_directory_without_a_topic_id_and_topic_is_kept() -> None:
    disk = await a_broker_with("t")
    files = disk.image(f"{DATA}/t-0")
    copies = {path.replace("t-0", "u-0"): data for path, data in files.items() if "partition.metadata" not in path}
    restore(disk, f"{DATA}/u-0", copies)
    async with memory_broker(disk):
        assert strays(disk) == ["u-0"]


async def test_metadata_cut_between_batches_loses_no_data_of_later_topics() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "a")
        size = broker.disk.size(f"{METADATA}/{0:020d}.log")
        await create_topic(client, "b")
        await produce(client, "b", batch(b"kept"))
        disk = broker.disk.crash()
    cut(disk, size)
    async with memory_broker(disk):
        assert strays(disk) == ["b-0"]


# --- the tier ---


async def tiered_broker(broker: MemoryBroker, *topics: str) -> None:
    """Tiered topics with four segments each, three of which are in the tier."""
    client = await broker.connect()
    for topic in topics:
        await create_topic(client, topic, settings=TIERED)
        await fill(client, topic, 4)
        await until(lambda topic=topic: segments(broker, topic) == 3)  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
async def test_d14_older_metadata_deletes_no_object_of_newer_topics(
    cleanly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_broker(settings=QUICK) as broker:
        await tiered_broker(broker, "orders")
    disk = broker.disk
    older = disk.image(METADATA)
    async with memory_broker(disk, settings=QUICK, stops_cleanly=cleanly) as broker:
        await tiered_broker(broker, "newer")
        if not cleanly:
            disk = broker.disk.crash()
    newest = disk.image(METADATA)
    restore(disk, METADATA, older)
    for _ in range(2):
        async with memory_broker(disk, settings=QUICK) as broker:
            await trio.sleep(600)
            assert segments(broker, "newer") == 3
            await read_all(await broker.connect(), "orders", 4)
            assert broker.node.broker is not None
            assert broker.node.broker.tier.manager is not None
            assert broker.node.broker.tier.manager.unknown_partitions == 1
    fields = [one.__dict__["kbroker_fields"] for one in caplog.records if "objects are kept" in one.getMessage()]
    assert fields == [{"partitions": 1, "topics": "newer"}] * 2
    restore(disk, METADATA, newest)
    for name in disk.list(DATA):
        if (match := STRAY.fullmatch(name)) is not None:
            disk.rename(f"{DATA}/{name}", f"{DATA}/{match[1]}")
    async with memory_broker(disk, settings=QUICK) as broker:
        await read_all(await broker.connect(), "newer", 4)


async def test_metadata_from_before_tiering_deletes_no_object() -> None:
    disk = await a_broker_with("plain")
    older = disk.image(METADATA)
    async with memory_broker(disk, settings=QUICK) as broker:
        await tiered_broker(broker, "newer")
        before = objects(broker)
    restore(disk, METADATA, older)
    async with memory_broker(disk, settings=QUICK) as broker:
        await tiered_broker(broker, "another")
        assert set(before) <= set(objects(broker))
        assert f"{REMOTE_LOG_METADATA_TOPIC}-0" in strays(disk)


@pytest.mark.parametrize("outage", [False, True])
async def test_objects_of_a_topic_deleted_before_a_restart_are_deleted(outage: bool) -> None:
    async with memory_broker(settings=QUICK, stops_cleanly=False) as broker:
        await tiered_broker(broker, "orders", "others")
        assert broker.node.broker is not None
        assert broker.node.broker.tier.manager is not None
        found: list[SimulatedDisk] = []
        if outage:
            broker.disk.rename("/data-tier", "/elsewhere")
        broker.disk.observer = lambda _: found.append(broker.disk.crash(Loss.PROCESS_DEATH))
        await delete_topic(await broker.connect(), "orders")
        broker.disk.observer = None
        if outage:
            await trio.sleep(60)
            found.append(broker.disk.crash())
    for disk in [*found[:-1][:: max(1, len(found) // 12)], found[-1]]:
        if outage:
            disk.rename("/elsewhere", "/data-tier")
        async with memory_broker(disk, settings=QUICK) as again:
            assert again.node.broker is not None
            if "orders" not in again.node.broker.image.topics_by_name:
                await until(lambda again=again: segments(again, "orders") == 0)  # type: ignore[misc]
            assert segments(again, "others") == 3
