"""The manager: which partitions are tiered, and what it knows of them after restarts and elections."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.tier_checker import TierState, complaints_about
from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RetriableRemoteStorageError,
)
from kbroker.tiered.registry import RemotePartitions, format_partitions, parse_partitions
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import FaultyStorage, Site, tiered_config

HOUR_MS = 3_600_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


async def test_without_a_tiered_topic_nothing_runs_or_is_created(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(remote_storage_enable=False))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await trio.sleep(3_600)
        assert site.topic.ensured == 0
        assert site.objects() == set()
        assert not site.disk.exists(site.manager._registry.path)
        assert orders.remote is None
        assert not site.manager._held
        assert trio.lowlevel.current_statistics().tasks_living < 12


async def test_kafka_15290_a_live_topic_is_tiered_from_its_start(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(remote_storage_enable=False))
    orders = site.add()
    site.append(orders, 20)
    orders.log.raise_log_start_offset(6)
    async with site.at_work():
        site.reconfigure(orders, remote_storage_enable=True)
        await site.changed()
        await site.settle()
        assert site.finished(orders)[0] == 4, "the segment that contains the log start"
        assert site.remote(orders).copy_lag_segments == 0
        assert not site.complaints(orders)


async def test_a_topic_tiered_before_a_crash_keeps_its_start(autojump_clock: MockClock) -> None:
    """Its settings are durable, and the name of its first segment gave the log start while it was not tiered."""
    site = Site(config=tiered_config(remote_storage_enable=False, retention_bytes=1_000))
    orders = site.add()
    site.append(orders, 20)
    await site.retain(orders)
    began = orders.log.log_start_offset
    assert began > 4
    site.close()
    again = site.again(config=tiered_config())
    orders = again.add()
    async with again.at_work():
        assert orders.log.log_start_offset == began
        assert again.finished(orders)[0] == began
        assert not again.complaints(orders)


async def test_losing_the_registry_loses_no_remote_data(autojump_clock: MockClock) -> None:
    """The same holds for a directory that Apache Kafka has written, which keeps no such list."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.retain(orders)
        began, local = orders.log.log_start_offset, orders.log.local_log_start_offset
        objects = site.objects()
    assert began < local
    site.close()
    site.disk.unlink(site.manager._registry.path)
    again = site.again()
    orders = again.add()
    async with again.at_work():
        await again.settle()
        assert (orders.log.log_start_offset, orders.log.local_log_start_offset) == (began, local)
        assert again.objects() >= objects
        assert not again.complaints(orders)


async def test_the_start_of_a_newly_tiered_log_is_stored_immediately(autojump_clock: MockClock) -> None:
    """The name of its first segment no longer gives the log start, and a crash may come before the first copy."""
    site = Site(config=tiered_config(remote_storage_enable=False, retention_bytes=1_000))
    orders = site.add()
    site.append(orders, 20)
    await site.retain(orders)
    began = orders.log.log_start_offset
    assert began > 4
    site.storage.down = RetriableRemoteStorageError("down")
    async with site.at_work():
        site.reconfigure(orders, remote_storage_enable=True, retention_bytes=-1)
        await site.changed()
        await site.settle()
        assert isinstance(site.disk, SimulatedDisk)
        disk = site.disk.crash(Loss.PROCESS_DEATH)
    again = site.again(disk, config=tiered_config())
    orders = again.add()
    assert orders.log.log_start_offset == began
    async with again.at_work():
        assert orders.log.log_start_offset == began
        assert again.finished(orders)[0] == began
        assert not again.complaints(orders)


async def test_a_metadata_loss_does_not_raise_the_log_start(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.retain(orders)
    site.close()
    for path in site.disk.list("/metadata"):
        for name in site.disk.list(f"/metadata/{path}"):
            site.disk.unlink(f"/metadata/{path}/{name}")
    again = site.again()
    orders = again.add()
    async with again.at_work():
        await again.rounds(2)
        assert orders.log.log_start_offset == 0 < orders.log.local_log_start_offset
        assert again.storage.deleted == []
    assert "the tier's metadata lack segments" in caplog.text


async def test_kafka_15351_kafka_16146_both_start_offsets_survive_a_restart(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await site.retain(orders)
        orders.log.raise_log_start_offset(6)
        await site.rounds()
        expected = (orders.log.log_start_offset, orders.log.local_log_start_offset)
        assert expected[0] == 6 < expected[1]
        highest = site.remote(orders).highest_offset_in_remote_storage
    site.close()
    for _ in range(2):
        site = site.again()
        orders = site.add()
        assert (orders.log.log_start_offset, orders.log.local_log_start_offset) == expected
        async with site.at_work():
            assert (orders.log.log_start_offset, orders.log.local_log_start_offset) == expected
            assert site.remote(orders).highest_offset_in_remote_storage == highest
            assert not site.complaints(orders)
        site.close()


async def test_a_tiered_partition_has_its_state_before_clients_are_served(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    await site.changed()
    assert orders.remote is not None
    assert orders.remote.highest_offset_in_remote_storage is None
    before = orders.remote
    async with site.at_work():
        assert orders.remote is before


async def test_epochs_of_remote_only_data_survive_a_restart(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    for _ in range(4):
        site.append(orders, 9)
        site.lead(orders)
    async with site.at_work():
        await site.retain(orders)
        assert orders.log.local_log_start_offset > 27
        epochs = orders.log.leader_epochs.entries
        assert epochs[0] == (1, 0)
    site.close()
    again = site.again()
    kept = again.add().log.leader_epochs.entries
    assert kept[:4] == epochs[:4]
    assert len(kept) == 5, "and one that starts now"


@pytest.mark.parametrize("damage", ["missing", "malformed"])
async def test_lost_checkpoints_are_restored_from_the_tier(damage: str, autojump_clock: MockClock) -> None:
    """Without the epochs every remote segment would belong to another history, and be deleted."""
    site = Site()
    orders = site.add()
    for _ in range(4):
        site.append(orders, 9)
        site.lead(orders)
    async with site.at_work():
        await site.retain(orders)
        orders.log.raise_log_start_offset(5)
        await site.rounds()
        everything = site.finished(orders)
        assert everything[0] == 4
        epochs = orders.log.leader_epochs.entries
    site.close()
    for path in ("/data/log-start-offset-checkpoint", f"{orders.log.directory}/leader-epoch-checkpoint"):
        if damage == "missing":
            site.disk.unlink(path)
        else:
            file = site.disk.open(path)
            file.pwrite(b"x", 0)
            file.close()
    again = site.again()
    orders = again.add()
    async with again.at_work():
        await again.rounds(3)
        assert again.finished(orders) == everything
        assert orders.log.log_start_offset == 4, "as much as the tier has"
        assert orders.log.leader_epochs.entries[1:4] == epochs[1:4]
        assert orders.log.leader_epochs.entries[0] == (1, 4)
        assert not again.complaints(orders)


async def test_kafka_16711_the_highest_remote_offset_comes_from_the_metadata(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        highest = site.remote(orders).highest_offset_in_remote_storage
        assert highest == orders.log.segments.active.base_offset - 1
    site.close()
    again = site.again()
    orders = again.add()
    again.topic.set_reachable(False)
    async with again.at_work():
        assert again.remote(orders).highest_offset_in_remote_storage is None
        await again.retain(orders)
        assert orders.log.local_log_start_offset == 0, "nothing is deleted locally until that is known"
        again.topic.set_reachable(True)
        await trio.sleep(10)
        await again.settle()
        assert again.remote(orders).highest_offset_in_remote_storage == highest
        await again.retain(orders)
        assert orders.log.local_log_start_offset == highest + 1


async def test_a_follower_copies_and_expires_nothing(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    site.lead(orders, leader=2)
    async with site.at_work():
        await trio.sleep(2 * 3_600)
        assert site.segments(orders) == []
        assert site.remote(orders).highest_offset_in_remote_storage == -1, "but it knows what the tier has"
        copied = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(id_of(orders), UUID(int=5)),
            start_offset=0,
            end_offset=3,
            max_timestamp_ms=site.env.timestamp_ms(),
            broker_id=2,
            event_timestamp_ms=site.env.timestamp_ms(),
            segment_leader_epochs=((1, 0),),
            segment_size_in_bytes=10,
        )
        await site.metadata.add_remote_log_segment_metadata(copied)
        await site.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(copied.remote_log_segment_id, 0, FINISHED, 2)
        )
        await site.rounds()
        assert site.remote(orders).highest_offset_in_remote_storage == 3, "and follows what the leader copies"
        site.lead(orders)
        await site.rounds(2)
        assert site.storage.copied


async def test_kafka_15241_a_new_leader_recomputes_its_highest_remote_offset(autojump_clock: MockClock) -> None:
    """Another leader copied records that this log never had; such an overlap is normal and loses nothing."""
    site = Site()
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        assert site.finished(orders) == [0, 4]
        site.lead(orders, leader=2)
        foreign = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(id_of(orders), UUID(int=5)),
            start_offset=6,
            end_offset=25,
            max_timestamp_ms=0,
            broker_id=2,
            event_timestamp_ms=0,
            segment_leader_epochs=((1, 6), (2, 10)),
            segment_size_in_bytes=1_000,
        )
        await site.metadata.add_remote_log_segment_metadata(foreign)
        await site.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(foreign.remote_log_segment_id, 0, FINISHED, 2)
        )
        site.lead(orders)
        assert orders.leader_epoch == 3
        site.append(orders, 20)
        await site.rounds()
        assert site.remote(orders).highest_offset_in_remote_storage == orders.log.segments.active.base_offset - 1
        state = TierState.of(
            orders.log,
            last_stable_offset=orders.log.log_end_offset,
            highest_remote=site.remote(orders).highest_offset_in_remote_storage,
            segments=site.segments(orders),
        )
        assert not list(complaints_about(state))


async def test_a_partition_is_registered_before_its_first_copy(autojump_clock: MockClock) -> None:
    class Watching(FaultyStorage):
        def copy_log_segment_data(self, metadata, data):  # type: ignore[no-untyped-def]
            stored = RemotePartitions(site.disk, "/data")
            stored.load()
            assert metadata.remote_log_segment_id.topic_id_partition in stored.entries
            return super().copy_log_segment_data(metadata, data)

    site = Site()
    site.storage = site.manager.tools.storage = Watching(site.disk)
    site.storage.configure({"dir": "/tier", "log.dir": "/data"})
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        assert site.storage.copied


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1\n0\n",
        "0\n1\n",
        "0\n1\nabc\n",
        "0\n2\nAAAAAAAAAAAAAAAAAAAAAQ 0 t\n",
        "0\nx\n",
        "0\n1\nAAAAAAAAAAAAAAAAAAAAAQ 0 t gone\n",
    ],
)
def test_a_damaged_registry_is_not_an_empty_one(text: str) -> None:
    with pytest.raises(ValueError):
        parse_partitions(text)
    assert parse_partitions(format_partitions([])) == (frozenset(), frozenset())


@pytest.mark.parametrize("damage", ["missing", "malformed"])
async def test_a_lost_registry_deletes_nothing_in_the_tier(damage: str, autojump_clock: MockClock) -> None:
    """It lists which partitions may have remote data; data known from the metadata do not depend on it."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.retain(orders)
        everything = site.finished(orders)
    site.close()
    site.disk.unlink("/data/remote-partitions")
    if damage == "malformed":
        file = site.disk.open("/data/remote-partitions", create=True)
        file.pwrite(b"0\n1\n", 0)
        file.close()
    again = site.again()
    orders = again.add()
    async with again.at_work():
        await again.rounds(3)
        assert again.finished(orders)[:4] == everything
        assert orders.log.log_start_offset == 0
        assert again.manager._registry.entries == {id_of(orders)}
        assert not again.complaints(orders)


async def test_many_partitions_are_registered_together(autojump_clock: MockClock) -> None:
    site = Site()
    many = [site.add("many", index) for index in range(40)]
    for one in many:
        site.append(one, 6)
    async with site.at_work():
        await site.rounds()
        assert site.manager._registry.entries == {id_of(one) for one in many}
        assert all(site.finished(one) for one in many)
    stored = RemotePartitions(site.disk, "/data")
    stored.load()
    assert stored.entries == {id_of(one) for one in many}


async def test_nothing_is_copied_while_the_registry_is_unwritable(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    site = Site(disk)
    orders = site.add()
    site.append(orders, 20)
    disk.inject(Fault(errno.ENOSPC, name="write", path="*remote-partitions*", times=-1))
    async with site.at_work():
        await site.rounds(2)
        assert site.objects() == set()
        assert "cannot be written" in site.remote(orders).last_error
        assert site.remote(orders).copy_lag_segments == 4
        disk.heal()
        await site.rounds(2)
        assert site.finished(orders) == [0, 4, 8, 12]
        assert not site.complaints(orders)


async def test_a_damaged_registry_stops_nothing(autojump_clock: MockClock) -> None:
    site = Site()
    file = site.disk.open("/data/remote-partitions", create=True)
    file.pwrite(b"nonsense", 0)
    file.close()
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        assert site.finished(orders) == [0, 4]
