"""The metadata manager on the topic: `kbroker.tiered.metadata_manager` and its parts, over real logs."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.remote_metadata import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    OTHER,
    RemoteMetadataConformance,
    copy,
    hold,
    segment_metadata,
    update_to,
)
from kbroker.testing.remote_segments import partition_named
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.metadata_topic import Events, encode_event
from tests.tiered.log_metadata_topic import LogMetadataTopic, LogReader
from tests.tiered.metadata_site import (
    DIRECTORY,
    PARTITIONS,
    WAIT_MS,
    append_all,
    at_work,
    batch_of,
    history,
    home_of,
    log_path,
    offsets_of,
    tier_settings,
    topic_on,
)

HOUR_S = 3_600
NEIGHBOUR = next(each for each in (partition_named("n", at) for at in range(99)) if home_of(each) == home_of(ORDERS))


class TestConformance(RemoteMetadataConformance):
    @asynccontextmanager
    async def running(self, store: Path) -> AsyncIterator[TopicRemoteLogMetadataManager]:
        disks = self.__dict__.setdefault("_disks", {})
        env, topic = topic_on(disks.setdefault(store, SimulatedDisk()))
        async with at_work(env, topic) as manager:
            yield manager
        topic.close()


async def test_without_a_tiered_partition_the_topic_is_not_created(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await trio.sleep(HOUR_S)
        assert (topic.ensured, topic.logs, manager.followed, manager.waits_for) == (0, [], [], "")


# --- readiness --------------------------------------------------------------------------------------------------------


async def test_kafka_19426_the_creation_of_the_topic_is_retried_without_limit(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    topic.set_reachable(False)
    async with at_work(env, topic) as manager, trio.open_nursery() as nursery:
        await manager.on_partition_leadership_changes([ORDERS], [])
        nursery.start_soon(manager.add_remote_log_segment_metadata, segment_metadata(ORDERS, 0, 9))
        await trio.sleep(HOUR_S)
        assert "cannot be created yet: nobody leads" in manager.waits_for
        assert topic.ensured < HOUR_S, "the pauses grow"
        topic.set_reachable(True)
        await manager.wait_until_ready(ORDERS)
        nursery_ended = trio.current_time()
    assert nursery_ended < HOUR_S + 10
    assert manager.failure == ""


async def test_kafka_15260_and_15181_queries_wait_for_existing_records(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    await topic.ensure()
    values, segments = history(ORDERS, 5)
    await append_all(topic, home_of(ORDERS), values[:4])
    topic.commits = False
    topic.logs[home_of(ORDERS)].append(batch_of(values[4:]), leader_epoch=0, timestamp_ms=1)
    async with at_work(env, topic) as manager, trio.open_nursery() as nursery:
        await manager.on_partition_leadership_changes([ORDERS], [])
        nursery.start_soon(copy, manager, segment_metadata(ORDERS, 50, 59))
        await trio.sleep(HOUR_S)
        assert not manager.is_ready(ORDERS)
        assert manager.followed[0].position == 4
        with pytest.raises(RetriableRemoteStorageError):
            manager.remote_log_segment_metadata(ORDERS, 0, 5)
        assert topic.logs[home_of(ORDERS)].log_end_offset == 10, "the copy has not started"
        topic.commits = True
        topic.commit_all()
        await manager.wait_until_ready(ORDERS)
        assert len(manager.list_remote_log_segments(ORDERS)) >= len(segments)
    assert offsets_of(manager.list_remote_log_segments(ORDERS)) == [(at, FINISHED) for at in range(0, 60, 10)]


async def test_a_lost_leader_is_reported_once(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        topic.set_reachable(False)
        await trio.sleep(HOUR_S)
        assert sum("cannot read the tier's metadata" in record.message for record in caplog.records) == 1
        topic.set_reachable(True)
        await copy(manager, segment_metadata(ORDERS, 0, 9))


async def test_an_unknown_end_is_reported_although_reading_succeeds(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    env, topic = topic_on(SimulatedDisk())
    await topic.ensure()
    log = topic.logs[home_of(ORDERS)]
    async with at_work(env, topic) as manager:
        log.append(batch_of([b"1"]), leader_epoch=0, timestamp_ms=1)
        await manager.on_partition_leadership_changes([ORDERS], [])
        for count in range(1, 7):
            await trio.sleep(10)
            topic.commit_all()
            log.append(batch_of([b"1"]), leader_epoch=0, timestamp_ms=1)
            await wait_all_tasks_blocked()
            assert manager.followed[0].position == count
        assert not manager.is_ready(ORDERS)
    assert sum("cannot find the end of the tier's metadata" in record.message for record in caplog.records) == 1


async def test_kafka_19599_early_queries_wait_until_ready(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    await topic.ensure()
    topic.commits = False
    topic.logs[home_of(ORDERS)].append(batch_of(history(ORDERS, 1)[0]), leader_epoch=0, timestamp_ms=1)
    async with at_work(env, topic) as manager:
        await manager.on_partition_leadership_changes([], [ORDERS])
        done: list[float] = []

        async def wait() -> None:
            await manager.wait_until_ready(ORDERS)
            done.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(wait)
            await trio.sleep(HOUR_S)
            assert done == []
            assert "1 partitions wait" in manager.waits_for
            topic.commit_all()
        assert len(done) == 100
        assert max(done) < HOUR_S + 1
        assert manager.waits_for == ""


class LateReader(LogReader):
    """Its answers arrive late: the end of the log after a second, events after ten."""

    async def end_offset(self) -> int:
        found = await super().end_offset()
        await trio.sleep(1)
        return found

    async def read(self, offset: int, leader_epoch: int, *, partition_count: int) -> Events | None:
        found = await super().read(offset, leader_epoch, partition_count=partition_count)
        await trio.sleep(10)
        return found


class LateTopic(LogMetadataTopic):
    """A topic with late readers."""

    def reader(self, partition: int) -> LogReader:
        return LateReader(self, partition)


async def test_a_partition_held_again_waits_for_the_records_since(autojump_clock: MockClock) -> None:
    """The end of the log was asked for when the partition was held for the first time."""
    env = MemoryEnv(SimulatedDisk())
    topic = LateTopic(env, DIRECTORY, partition_count=PARTITIONS)
    async with at_work(env, topic) as manager:
        await hold(manager, NEIGHBOUR)
        await manager.on_partition_leadership_changes([ORDERS], [])
        await trio.sleep(0.5)
        await manager.on_stop_partitions([ORDERS])
        values, segments = history(ORDERS, 1)
        await append_all(topic, home_of(ORDERS), values)
        await hold(manager, ORDERS)
        assert offsets_of(manager.list_remote_log_segments(ORDERS)) == [(segments[0].start_offset, FINISHED)]


async def test_a_wrong_number_of_partitions_is_an_error(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk(), partition_count=5)
    async with at_work(env, topic, settings=tier_settings(partition_count=3)) as manager:
        await manager.on_partition_leadership_changes([ORDERS], [])
        with pytest.raises(RemoteStorageError, match=r"has 5 partitions, but .*num\.partitions is 3") as raised:
            await manager.wait_until_ready(ORDERS)
        assert not isinstance(raised.value, RetriableRemoteStorageError)
        with pytest.raises(RemoteStorageError, match="has 5 partitions"):
            await manager.add_remote_log_segment_metadata(segment_metadata(ORDERS, 0, 9))
        assert "has 5 partitions" in manager.waits_for
        topic.logs = topic.logs[:3]
        await trio.sleep(10)
        await copy(manager, segment_metadata(ORDERS, 0, 9))


# --- records of strangers ---------------------------------------------------------------------------------------------


async def test_an_unreadable_record_is_skipped_and_tiering_continues(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    begun = segment_metadata(ORDERS, 100, 109)
    wrong = [b"not a record", encode_event(update_to(begun, FINISHED)), encode_event(update_to(begun, DELETED))]
    async with at_work(env, topic, closes=False) as manager:
        await hold(manager, ORDERS)
        before = await copy(manager, segment_metadata(ORDERS, 0, 9))
        await topic.append_batch(home_of(ORDERS), batch_of(wrong))
        after = await copy(manager, segment_metadata(ORDERS, 10, 19))
        assert (manager.counters.skipped_records, manager.counters.dropped_events) == (1, 2)
    dropped, skipped = (str(vars(line)["kbroker_fields"]["why"]) for line in caplog.records)
    assert "no remote segment" in dropped
    assert "frame version" in skipped
    env, topic = topic_on(disk)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        assert manager.list_remote_log_segments(ORDERS) == [before, after]
        assert (manager.counters.skipped_records, manager.counters.dropped_events) == (1, 2)
        await copy(manager, segment_metadata(ORDERS, 20, 29))


# --- M10: the topic's leader is lost, lags, or its log is torn --------------------------------------------------------


async def test_m10_changes_wait_while_the_leader_of_the_topic_is_lost(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        known = await copy(manager, segment_metadata(ORDERS, 0, 9))
        topic.set_reachable(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, manager, segment_metadata(ORDERS, 10, 19))
            await trio.sleep(WAIT_MS / 2_000)
            assert manager.list_remote_log_segments(ORDERS) == [known], "known segments can be queried during that"
            topic.set_reachable(True)
        assert offsets_of(manager.list_remote_log_segments(ORDERS)) == [(0, FINISHED), (10, FINISHED)]
        topic.set_reachable(False)
        begun = trio.current_time()
        with pytest.raises(RetriableRemoteStorageError, match="nobody leads"):
            await manager.add_remote_log_segment_metadata(segment_metadata(ORDERS, 20, 29))
        assert trio.current_time() - begun == pytest.approx(WAIT_MS / 1_000, abs=0.2)


async def test_m10_an_uncommitted_change_is_not_visible(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        topic.commits = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, manager, segment_metadata(ORDERS, 0, 9))
            await trio.sleep(HOUR_S)
            assert topic.logs[home_of(ORDERS)].log_end_offset == 1, "it waits for the first to be committed"
            assert manager.list_remote_log_segments(ORDERS) == []
            topic.commits = True
            topic.commit_all()
        assert offsets_of(manager.list_remote_log_segments(ORDERS)) == [(0, FINISHED)]


async def test_m10_damage_in_the_log_is_skipped() -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    await topic.ensure()
    values, segments = history(ORDERS, 6)
    places = []
    for at in range(0, len(values), 2):
        places.append(topic.logs[home_of(ORDERS)].size)
        await topic.append_batch(home_of(ORDERS), batch_of(values[at : at + 2]))
    topic.close()
    file = disk.open(log_path(ORDERS))
    file.pwrite(b"\xff" * 40, places[3] + 61)
    env, topic = topic_on(disk, clean_shutdown=True)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        expected = [(each.start_offset, FINISHED) for each in segments if each is not segments[3]]
        assert offsets_of(manager.list_remote_log_segments(ORDERS)) == expected
        assert manager.counters.skipped_records == 2
        await copy(manager, segment_metadata(ORDERS, 60, 69))


@pytest.mark.parametrize("is_new", [True, False])
async def test_m10_an_unreadable_log_is_read_later(is_new: bool, autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    values, segments = history(ORDERS, 20)
    await topic.ensure()
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        disk.inject(Fault(errno.EIO, name="read", path="*.log", times=3))
        if is_new:
            await topic.append_batch(home_of(ORDERS), batch_of(values[:2]))
        else:
            await topic.append_batch(home_of(ORDERS), batch_of(values))
        await trio.sleep(60)
        assert len(manager.list_remote_log_segments(ORDERS)) == (1 if is_new else len(segments))
        assert manager.counters.skipped_records == 0


@pytest.mark.parametrize("how", ["cut", "replaced"])
async def test_m10_a_truncated_or_replaced_log_is_read_again(how: str, autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    values, segments = history(ORDERS, 3)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        await topic.append_batch(home_of(ORDERS), batch_of(values[:2]))
        await topic.append_batch(home_of(ORDERS), batch_of(values[2:]))
        await wait_all_tasks_blocked()
        assert len(manager.list_remote_log_segments(ORDERS)) == 3
        topic.logs[home_of(ORDERS)].truncate_to(2)
        if how == "replaced":
            topic.reopen()
        topic.set_reachable(False)
        await trio.sleep(1)
        topic.commit_all()
        topic.set_reachable(True)
        await trio.sleep(10)
        await manager.wait_until_ready(ORDERS)
        assert offsets_of(manager.list_remote_log_segments(ORDERS)) == [(segments[0].start_offset, FINISHED)]
        await copy(manager, segment_metadata(ORDERS, 10, 19))
        assert manager.counters.dropped_events == 0


async def test_a_deleted_metadata_topic_is_created_again(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        await copy(manager, segment_metadata(ORDERS, 0, 9))
        topic.delete(topic_id=OTHER.topic_id)
        await trio.sleep(60)
        assert topic.ensured == 2
        await hold(manager, ORDERS)
        assert manager.list_remote_log_segments(ORDERS) == []
        await copy(manager, segment_metadata(ORDERS, 10, 19))


# --- what is held -----------------------------------------------------------------------------------------------------


async def test_a_metadata_partition_is_followed_while_it_is_needed(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS, NEIGHBOUR)
        assert [each.index for each in manager.followed] == [home_of(ORDERS)]
        known = await copy(manager, segment_metadata(NEIGHBOUR, 0, 9))
        await manager.on_stop_partitions([ORDERS])
        await wait_all_tasks_blocked()
        assert manager.list_remote_log_segments(NEIGHBOUR) == [known]
        await manager.on_stop_partitions([NEIGHBOUR])
        await wait_all_tasks_blocked()
        assert manager.followed == []
        await manager.on_stop_partitions([NEIGHBOUR])
        await hold(manager, NEIGHBOUR)
        assert manager.list_remote_log_segments(NEIGHBOUR) == [known]


async def test_kafka_15130_metadata_of_a_deleted_topic_are_forgotten() -> None:
    """The metadata of segments to delete are kept over restarts until the segments are deleted, and not longer."""
    disk = SimulatedDisk()
    incarnations = (partition_named("orders", 0, incarnation=number) for number in range(2, 99))
    again = next(each for each in incarnations if home_of(each) == home_of(ORDERS))
    env, topic = topic_on(disk)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS, again)
        gone = await copy(manager, segment_metadata(ORDERS, 0, 9))
        await manager.update_remote_log_segment_metadata(update_to(gone, DELETING))
        await copy(manager, segment_metadata(again, 0, 9))
    topic.close()
    env, topic = topic_on(disk)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS, again)
        assert [each.state for each in manager.list_remote_log_segments(ORDERS)] == [DELETING]
        await manager.update_remote_log_segment_metadata(update_to(gone, DELETED))
        await manager.on_stop_partitions([ORDERS])
        await hold(manager, again)
        assert len(manager.list_remote_log_segments(again)) == 1
        assert [key for each in manager.followed for key in each.caches] == [again]
