"""The manager: what is tiered, since when and till when; quotas, stops, restarts."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kbroker.storage.checkpoint import read_file
from kbroker.testing.tier_checker import TierState, complaints_about
from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RetriableRemoteStorageError,
)
from kbroker.tiered.registry import RemotePartitions, format_partitions, parse_partitions
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import FaultyStorage, Site, settings, tiered_config

HOUR_MS = 3_600_000


async def test_without_a_tiered_topic_nothing_runs_and_nothing_is_made(autojump_clock: MockClock) -> None:
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


async def test_kafka_15290_a_live_topic_is_tiered_from_its_log_start_on(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(remote_storage_enable=False))
    orders = site.add()
    site.append(orders, 20)
    orders.log.raise_log_start_offset(6)
    async with site.at_work():
        site.reconfigure(orders, remote_storage_enable=True)
        await site.changed()
        await site.settle()
        assert site.finished(orders)[0] == 4, "the segment that holds the log's start"
        assert site.remote(orders).copy_lag_segments == 0
        assert not site.complaints(orders)


async def test_a_topic_tiered_just_before_the_broker_died_begins_where_it_began(autojump_clock: MockClock) -> None:
    """Its settings are durable, and where a log begins that is not tiered was said by its first segment."""
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


async def test_a_directory_that_lost_the_list_of_its_tiered_partitions_loses_nothing_of_them(
    autojump_clock: MockClock,
) -> None:
    """Nor does one that Apache Kafka has filled, which keeps no such list."""
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


async def test_a_tier_that_lost_its_metadata_does_not_make_the_log_shorter(
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
    assert "the tier knows nothing" in caplog.text


async def test_kafka_15351_kafka_16146_log_start_and_local_start_are_two_after_a_restart(
    autojump_clock: MockClock,
) -> None:
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


async def test_the_epochs_of_what_the_tier_alone_holds_survive_a_restart(autojump_clock: MockClock) -> None:
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
    assert len(kept) == 5, "and one that begins now"


@pytest.mark.parametrize("damage", ["missing", "malformed"])
async def test_lost_checkpoints_of_starts_and_epochs_are_made_good_by_the_tier(
    damage: str, autojump_clock: MockClock
) -> None:
    """Without the epochs every remote segment would count as another history's, and be deleted."""
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
        assert orders.log.local_log_start_offset == 0, "as long as that is not known nothing local goes"
        again.topic.set_reachable(True)
        await trio.sleep(10)
        await again.settle()
        assert again.remote(orders).highest_offset_in_remote_storage == highest
        await again.retain(orders)
        assert orders.log.local_log_start_offset == highest + 1


async def test_kafka_17236_with_copying_switched_off_local_retention_waits_for_no_upload(
    autojump_clock: MockClock,
) -> None:
    site = Site(config=tiered_config(retention_bytes=1_500))
    orders = site.add()
    site.append(orders, 6)
    async with site.at_work():
        assert site.finished(orders) == [0]
        site.reconfigure(orders, remote_log_copy_disable=True, local_retention_bytes=-2)
        await site.changed()
        site.append(orders, 30)
        await site.rounds(2)
        assert site.storage.copied == [0], "nothing more is copied"
        assert not site.remote(orders).copies
        await site.retain(orders)
        assert orders.log.size <= 1_500 + 800
        assert orders.log.log_start_offset == orders.log.local_log_start_offset > 8
        await site.rounds()
        assert site.segments(orders) == [], "what is in the tier expires as before"
        site.reconfigure(orders, remote_log_copy_disable=False, local_retention_bytes=0)
        await site.changed()
        await site.settle()
        assert site.finished(orders), "and copying can be switched on again"
        assert site.finished(orders)[0] >= orders.log.log_start_offset - 3
        assert not site.complaints(orders)


async def test_copying_switched_off_leaves_what_is_in_the_tier_readable(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.retain(orders)
        before = site.finished(orders)
        site.reconfigure(orders, remote_log_copy_disable=True, local_retention_bytes=-2)
        await site.changed()
        site.append(orders, 20)
        await site.rounds(3)
        await site.retain(orders)
        assert site.finished(orders) == before
        assert orders.log.log_start_offset == 0
        assert orders.remote is not None


async def test_kip_950_leaving_the_tier_gives_up_what_is_in_it_alone(autojump_clock: MockClock) -> None:
    site = Site()
    orders, others = site.add(), site.add("others")
    for one in (orders, others):
        site.append(one, 20)
    async with site.at_work():
        await site.retain(orders)
        local = orders.log.local_log_start_offset
        assert local > 10
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        await site.changed()
        await site.rounds()
        assert orders.remote is None
        assert orders.log.log_start_offset == orders.log.local_log_start_offset == local
        assert read_file(site.disk, "/data/log-start-offset-checkpoint")
        assert site.objects() == {one.remote_log_segment_id.id for one in site.segments(others)}
        assert site.manager._registry.entries == {id_of(others)}
        assert not site.metadata.is_ready(id_of(orders)), "its metadata is followed no more"
        # And back again: what is here is copied anew, though once it had been there.
        site.append(orders, 4)
        site.reconfigure(orders, remote_storage_enable=True)
        await site.changed()
        await site.rounds()
        assert site.finished(orders)[0] == local
        assert not site.complaints(orders)


async def test_after_leaving_and_coming_back_nothing_local_goes_that_the_tier_has_no_more(
    autojump_clock: MockClock,
) -> None:
    """Segments that were copied once are still here, and their copies are deleted: they count as not copied."""
    site = Site(config=tiered_config(local_retention_bytes=-2))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        assert site.finished(orders)[0] == 0
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        await site.changed()
        await site.rounds()
        assert site.objects() == set()
        assert orders.log.log_start_offset == 0
        site.storage.down = RetriableRemoteStorageError("down")
        site.reconfigure(orders, remote_storage_enable=True, local_retention_bytes=0)
        await site.changed()
        await site.rounds()
        await site.retain(orders)
        assert orders.log.local_log_start_offset == 0
        assert not site.complaints(orders)
        site.storage.down = None
        await site.rounds(2)
        await site.retain(orders)
        assert site.finished(orders)[0] == 0
        assert orders.log.local_log_start_offset > 10
        assert not site.complaints(orders)


async def test_kafka_15130_the_deletion_of_a_topic_is_a_job_that_survives_restarts(autojump_clock: MockClock) -> None:
    site = Site()
    orders, others = site.add(), site.add("others")
    site.append(orders, 20)
    site.append(others, 8)
    async with site.at_work():
        site.storage.down = RetriableRemoteStorageError("down")
        site.delete_topic(orders)
        await site.changed()
        await site.rounds(2)
        assert len(site.objects()) == 5
    for is_up in (False, False, True):
        site.close()
        site = site.again()
        site.storage.down = None if is_up else RetriableRemoteStorageError("down")
        others = site.add("others")
        async with site.at_work():
            await site.rounds(2)
            ours = {one.remote_log_segment_id.id for one in site.segments(others)}
            assert len(ours) == 1
            assert (site.objects() == ours) is is_up


async def test_m8_a_topic_deleted_just_before_the_broker_died_leaves_nothing(autojump_clock: MockClock) -> None:
    """The metadata of the cluster knows the topic no more, and nobody told the tier."""
    site = Site()
    site.append(site.add(), 20)
    async with site.at_work():
        assert site.objects()
    site.close()
    again = site.again()
    async with again.at_work():
        assert again.objects() == set()
        assert again.manager._registry.entries == frozenset()
        assert read_file(again.disk, again.manager._registry.path) == b"0\n0\n"


async def test_another_topic_of_the_same_name_has_nothing_to_do_with_the_deleted_one(
    autojump_clock: MockClock,
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        site.delete_topic(orders)
        site.written.clear()
        successor = site.add(topic_id=UUID(int=0xBEEF))
        site.append(successor, 9)
        await site.changed()
        await site.rounds(2)
        assert site.finished(successor) == [0, 4]
        assert site.objects() == {one.remote_log_segment_id.id for one in site.segments(successor)}
        assert site.manager._registry.entries == {id_of(successor)}
        assert not site.complaints(successor)


async def test_a_partition_that_is_led_elsewhere_copies_and_expires_nothing(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    site.lead(orders, leader=2)
    async with site.at_work():
        await trio.sleep(2 * 3_600)
        assert site.segments(orders) == []
        assert site.remote(orders).highest_offset_in_remote_storage == -1, "but it knows what the tier has"
        site.lead(orders)
        await site.rounds(2)
        assert site.storage.copied


async def test_kafka_15241_a_new_leadership_finds_out_anew_what_of_its_history_is_copied(
    autojump_clock: MockClock,
) -> None:
    """Another leader copied records that this log never had; the overlap is normal, and nothing is lost by it."""
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
        from kbroker.tiered.api import RemoteLogSegmentMetadataUpdate

        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        await site.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(foreign.remote_log_segment_id, 0, finished, 2)
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


# --- flush ------------------------------------------------------------------------------------------------------------


async def test_a_flush_rolls_and_copies_what_was_there_when_it_was_asked_for(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 2)
    async with site.at_work():
        assert site.finished(orders) == []
        await trio.sleep(1)
        site.reconfigure(orders, kbroker_remote_flush_timestamp_ms=site.env.timestamp_ms())
        await site.changed()
        await site.settle()
        assert site.finished(orders) == [0]
        assert site.remote(orders).highest_offset_in_remote_storage == 1
        await trio.sleep(1)
        site.append(orders, 1)
        await site.rounds(3)
        assert site.finished(orders) == [0], "what came later stays until its segment closes by itself"
        site.reconfigure(orders, kbroker_remote_flush_timestamp_ms=site.env.timestamp_ms())
        await site.changed()
        await site.settle()
        assert site.finished(orders) == [0, 2]


async def test_a_flush_that_a_restart_interrupted_is_made_up_for(autojump_clock: MockClock) -> None:
    disk_time = [0]
    from kbroker.testing.disk import SimulatedDisk

    site = Site(SimulatedDisk(timestamp_ms=lambda: disk_time[0]))
    orders = site.add()
    disk_time[0] = site.env.timestamp_ms()
    site.append(orders, 6)
    await trio.sleep(1)
    site.close()
    asked = site.env.timestamp_ms()
    await trio.sleep(1)
    again = site.again(config=tiered_config(kbroker_remote_flush_timestamp_ms=asked))
    orders = again.add()
    async with again.at_work():
        assert again.finished(orders) == [0, 4]
        disk_time[0] = again.env.timestamp_ms()
        again.append(orders, 1)
        again.close_segment(orders)
        again.append(orders, 1)
    again.close()
    third = again.again()
    orders = third.add()
    async with third.at_work():
        assert third.finished(orders)[-1] == 6
        assert orders.log.segments.active.base_offset == 7, "all of it was appended later: it is not rolled again"


# --- quotas -----------------------------------------------------------------------------------------------------------


async def test_the_copy_quota_holds_over_all_partitions_and_can_be_changed(autojump_clock: MockClock) -> None:
    limits = {
        "remote_log_manager_copy_max_bytes_per_second": 100,
        "remote_log_manager_copy_quota_window_num": 1,
        "remote_log_manager_task_interval_ms": 1_000,
    }
    site = Site(tier=settings(**limits))
    for number in range(3):
        site.append(site.add(f"topic{number}"), 40)
    began = trio.current_time()
    async with site.at_work():
        size = max(segment.size for one in site.partitions.values() for segment in one.log.segments)
        await trio.sleep(60)
        copied = sum(site.remote(one).counters.copy_bytes for one in site.partitions.values())
        spent = trio.current_time() - began
        assert copied <= 100 * (spent + 1) + size
        assert copied >= 100 * spent - size
        site.manager.reconfigure(settings(**{**limits, "remote_log_manager_copy_max_bytes_per_second": 10_000}))
        await trio.sleep(5)
        assert all(site.remote(one).copy_lag_segments == 0 for one in site.partitions.values())
        assert sum(site.remote(one).copy_lag_bytes for one in site.partitions.values()) == 0


async def test_kafka_15265_a_quota_counts_from_the_first_copy_after_a_restart(autojump_clock: MockClock) -> None:
    limits = settings(
        remote_log_manager_copy_max_bytes_per_second=10,
        remote_log_manager_copy_quota_window_num=1,
    )
    site = Site(tier=limits)
    site.append(site.add(), 40)
    async with site.at_work():
        assert len(site.storage.copied) == 1, "one segment is more than the budget of a minute"
    site.close()
    again = site.again()
    again.add()
    async with again.at_work():
        await trio.sleep(1)
        assert len(again.storage.copied) == 1


# --- stopping ---------------------------------------------------------------------------------------------------------


class MinuteThreads:
    """Threads in which each copy takes a minute."""

    async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
        if function.__name__ == "_copy_data":
            with trio.CancelScope(shield=True):  # a thread cannot be cancelled
                await trio.sleep(60)
        else:
            await trio.lowlevel.checkpoint()
        return function(*arguments)

    def resize(self, limit: int) -> None: ...


async def test_a_stop_lets_the_copy_under_way_end_and_begins_no_other(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    site.manager.tools.copy_threads = MinuteThreads()
    async with site.at_work():
        await trio.sleep(10)
        await site.manager.stop(grace_ms=90_000)
        assert site.storage.copied == [0]
        assert site.finished(orders) == [0]


async def test_a_stop_that_takes_too_long_leaves_something_that_the_next_start_tidies_up(
    autojump_clock: MockClock,
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    site.manager.tools.copy_threads = MinuteThreads()
    async with site.at_work():
        await trio.sleep(10)
        site.topic.set_reachable(False)
        await site.manager.stop(grace_ms=1_000)
        site.topic.set_reachable(True)
    site.close()
    again = site.again()
    orders = again.add()
    async with again.at_work():
        assert again.finished(orders) == [0, 4, 8, 12]
        assert again.storage.deleted == [0]
        assert not again.complaints(orders)


# --- the registry -----------------------------------------------------------------------------------------------------


async def test_a_partition_is_written_down_before_anything_of_it_is_copied(autojump_clock: MockClock) -> None:
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
    "text", ["", "1\n0\n", "0\n1\n", "0\n1\nabc\n", "0\n2\nAAAAAAAAAAAAAAAAAAAAAQ 0 t\n", "0\nx\n"]
)
def test_a_damaged_registry_is_told_apart_from_an_empty_one(text: str) -> None:
    with pytest.raises(ValueError):
        parse_partitions(text)
    assert parse_partitions(format_partitions([])) == frozenset()


async def test_a_damaged_registry_stops_nothing(autojump_clock: MockClock) -> None:
    site = Site()
    file = site.disk.open("/data/remote-partitions", create=True)
    file.pwrite(b"nonsense", 0)
    file.close()
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        assert site.finished(orders) == [0, 4]
