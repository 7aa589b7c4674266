"""Snapshots of the tier's metadata (`kbroker.tiered.metadata_snapshot`), and crashes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import MemoryEnv
from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, ORDERS, copy, hold, segment_metadata, update_to
from kbroker.tiered import metadata_snapshot
from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.metadata_follower import MIN_EVENTS_BETWEEN_SNAPSHOTS, NO_BATCH
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.metadata_snapshot import Snapshot, Source
from kbroker.tiered.metadata_topic import NO_EPOCH
from tests.tiered.log_metadata_topic import LogMetadataTopic
from tests.tiered.metadata_site import (
    PARTITIONS,
    append_all,
    at_work,
    batch_of,
    history,
    home_of,
    log_path,
    offsets_of,
    snapshot_path,
    tier_settings,
    topic_on,
)

HOME = home_of(ORDERS)


def everything(manager: TopicRemoteLogMetadataManager) -> list[object]:
    """All answers of the manager about the partition."""
    segments = sorted(manager.list_remote_log_segments(ORDERS), key=lambda each: each.remote_log_segment_id.id)
    highest = [manager.highest_offset_for_epoch(ORDERS, epoch) for epoch in range(3)]
    found = [manager.remote_log_segment_metadata(ORDERS, 0, offset) for offset in range(0, 200, 5)]
    return [segments, highest, found]


async def with_snapshot(disk: SimulatedDisk) -> list[object]:
    """Let a manager read a history and write its snapshot; returns its answers."""
    env, topic = topic_on(disk)
    await topic.ensure()
    values, _ = history(ORDERS, 12, deleted=3)
    await append_all(topic, HOME, values, size=2)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        await copy(manager, segment_metadata(ORDERS, 120, 129, epochs={0: 120, 2: 125}))
        answers = everything(manager)
    topic.close()
    assert disk.exists(snapshot_path(ORDERS))
    return answers


async def answers_on(disk: SimulatedDisk, topic: LogMetadataTopic | None = None) -> tuple[list[object], int]:
    """The answers of a manager that starts on this disk, and the number of events it read from the log."""
    env, found = topic_on(disk, clean_shutdown=True)
    found = found if topic is None else topic
    async with at_work(env, found, closes=False) as manager:
        await hold(manager, ORDERS)
        return everything(manager), manager.counters.events_read


async def test_a_snapshot_saves_reading_after_a_restart() -> None:
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    assert await answers_on(disk) == (answers, 0)


async def test_events_after_the_snapshot_are_read_from_the_log() -> None:
    disk = SimulatedDisk()
    await with_snapshot(disk)
    env, topic = topic_on(disk)
    async with at_work(env, topic, closes=False) as manager:
        await hold(manager, ORDERS)
        await copy(manager, segment_metadata(ORDERS, 130, 139, epochs={2: 130}))
        answers = everything(manager)
    assert await answers_on(disk) == (answers, 2)


def remove(disk: SimulatedDisk) -> None:
    disk.unlink(snapshot_path(ORDERS))


def empty(disk: SimulatedDisk) -> None:
    disk.open(snapshot_path(ORDERS)).truncate(0)


def cut(disk: SimulatedDisk) -> None:
    file = disk.open(snapshot_path(ORDERS))
    file.truncate(file.size() // 2)


def zero(disk: SimulatedDisk) -> None:
    """Four zeros have the right checksum, for a snapshot without a header."""
    file = disk.open(snapshot_path(ORDERS))
    file.truncate(0)
    file.pwrite(bytes(4), 0)


def flip(position: int) -> Callable[[SimulatedDisk], None]:
    def change(disk: SimulatedDisk) -> None:
        file = disk.open(snapshot_path(ORDERS))
        at = position % file.size()
        file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)

    return change


@pytest.mark.parametrize("harm", [remove, empty, cut, zero, *(flip(at) for at in (0, 4, 5, 22, 40, 60, 90, 333, -1))])
async def test_m10_without_a_valid_snapshot_the_log_is_read(harm: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    harm(disk)
    found, events_read = await answers_on(disk)
    assert found == answers
    assert events_read == 32


@pytest.mark.parametrize("refilled", [False, True], ids=["shorter", "other batches"])
async def test_m10_a_snapshot_beyond_the_log_end_is_not_used(refilled: bool) -> None:
    """After a power loss the log may end before the snapshot's position, and then grow again."""
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    _, topic = topic_on(disk)
    log = topic.logs[HOME]
    end_offset = log.log_end_offset
    log.truncate_to(end_offset - 2)  # the last segment
    if refilled:
        values, _ = history(ORDERS, 5, first=13)
        await append_all(topic, HOME, values, size=2)
        assert log.log_end_offset > end_offset
    topic.close()
    found, _ = await answers_on(disk)
    assert found != answers
    disk.unlink(snapshot_path(ORDERS))
    assert (await answers_on(disk))[0] == found


async def test_a_snapshot_waits_until_its_end_is_committed(autojump_clock: MockClock) -> None:
    """A new leader does not know yet how much is committed."""
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    _, topic = topic_on(disk, clean_shutdown=True)
    topic.forget_commits()
    async with trio.open_nursery() as nursery:

        async def commit_later() -> None:
            await trio.sleep(60)
            topic.commit_all()

        nursery.start_soon(commit_later)
        assert await answers_on(disk, topic) == (answers, 0)


async def test_a_snapshot_beyond_an_empty_log_is_not_used() -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    await topic.ensure()
    assert topic.topic_id is not None
    snapshot = Snapshot(1, NO_BATCH, NO_EPOCH, {}, [])
    metadata_snapshot.write(disk, topic.logs[HOME].directory, Source(topic.topic_id, HOME, PARTITIONS), snapshot)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        assert manager.followed[0].position == 0
        await copy(manager, segment_metadata(ORDERS, 0, 9))


async def test_a_partition_held_again_is_not_read_again(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    with trio.fail_after(60):
        await hold_again_and_again(env, topic)


async def hold_again_and_again(env: MemoryEnv, topic: LogMetadataTopic) -> None:
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        await copy(manager, segment_metadata(ORDERS, 0, 9))
        for _ in range(3):
            await manager.on_stop_partitions([ORDERS])
            await hold(manager, ORDERS)
            assert len(manager.list_remote_log_segments(ORDERS)) == 1
        assert manager.counters.events_read == 2


async def test_a_snapshot_of_another_topic_is_not_used() -> None:
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    env, topic = topic_on(disk, clean_shutdown=True)
    topic.reopen(topic_id=ORDERS.topic_id)
    assert await answers_on(disk, topic) == (answers, 32)
    env, topic = topic_on(disk, clean_shutdown=True)
    topic.logs = topic.logs[:1]
    async with at_work(env, topic, settings=tier_settings(partition_count=1), closes=False) as manager:
        await hold(manager, ORDERS)
        # The records of the other partition in this one belong here now, or it had none.
        assert manager.counters.events_read == manager.followed[0].position


async def test_reading_continues_at_a_log_start_beyond_the_snapshot() -> None:
    disk = SimulatedDisk()
    answers = await with_snapshot(disk)
    _, topic = topic_on(disk, clean_shutdown=True)
    await topic.append_batch(HOME, batch_of([b"lost"] * 3))
    topic.logs[HOME].raise_log_start_offset(topic.logs[HOME].log_end_offset)
    assert await answers_on(disk, topic) == (answers, 0)


async def test_snapshots_are_written_while_the_log_grows() -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    values, segments = history(ORDERS, MIN_EVENTS_BETWEEN_SNAPSHOTS // 2 + 500)
    async with at_work(env, topic, closes=False) as manager:
        await hold(manager, ORDERS)
        await append_all(topic, HOME, values)
        while manager.followed[0].position < len(values):
            await wait_all_tasks_blocked()
        assert disk.exists(snapshot_path(ORDERS))
        assert len(manager.list_remote_log_segments(ORDERS)) == len(segments)
    _, events_read = await answers_on(disk)
    assert events_read <= 1_000


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_failed_snapshot_does_not_stop_the_follower(error: int) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        disk.inject(Fault(error, path="*/remote_log_snapshot*", times=-1))
        await copy(manager, segment_metadata(ORDERS, 0, 9))
        await manager.close()
        answers = everything(manager)
    assert not disk.exists(snapshot_path(ORDERS))
    disk.heal()
    assert await answers_on(disk) == (answers, 2)


# --- crashes ----------------------------------------------------------------------------------------------------------


async def workload(disk: SimulatedDisk, states: list[list[tuple[int, int]]]) -> None:
    """Two manager processes with snapshots; each acknowledged change adds the resulting state to `states`."""
    for life in range(2):
        env, topic = topic_on(disk, clean_shutdown=True)
        async with at_work(env, topic) as manager:
            await hold(manager, ORDERS)
            segments: list[RemoteLogSegmentMetadata] = []
            for at in range(2):
                start = 20 * life + 10 * at
                segments.append(segment_metadata(ORDERS, start, start + 9))
                await manager.add_remote_log_segment_metadata(segments[-1])
                states.append(offsets_of(manager.list_remote_log_segments(ORDERS)))
                await manager.update_remote_log_segment_metadata(update_to(segments[-1], FINISHED))
                states.append(offsets_of(manager.list_remote_log_segments(ORDERS)))
            for state in (DELETING, DELETED):
                await manager.update_remote_log_segment_metadata(update_to(segments[0], state))
                states.append(offsets_of(manager.list_remote_log_segments(ORDERS)))
        topic.close()


@pytest.mark.parametrize("loss", list(Loss))
async def test_m10_acknowledged_changes_survive_a_crash_at_any_operation(loss: Loss) -> None:
    states: list[list[tuple[int, int]]] = [[]]
    crashes: list[tuple[str, SimulatedDisk, int]] = []
    disk = SimulatedDisk()

    def crash(operation: Operation) -> None:
        crashes.append((str(operation), disk.crash(loss, seed=operation.number, during=operation), len(states)))

    _, topic = topic_on(disk)
    await topic.ensure()
    disk.observer = crash
    await workload(disk, states)
    assert len(states) == 13
    assert len(crashes) > 50, "twelve changes with a sync each, and two snapshots"
    for operation, crashed, acknowledged in crashes:
        env, topic = topic_on(crashed)
        async with at_work(env, topic, closes=False) as manager:
            await hold(manager, ORDERS)
            known = offsets_of(manager.list_remote_log_segments(ORDERS))
            # The change in progress may be stored or not.
            assert known in states[acknowledged - 1 : acknowledged + 1], operation
            answers = everything(manager)
            await copy(manager, segment_metadata(ORDERS, 900, 909))
        if crashed.exists(snapshot_path(ORDERS)):
            crashed.unlink(snapshot_path(ORDERS))
        env, topic = topic_on(crashed)
        async with at_work(env, topic, closes=False) as manager:
            await hold(manager, ORDERS)
            known_again = [each for each in manager.list_remote_log_segments(ORDERS) if each.start_offset < 900]
            assert sorted(each.remote_log_segment_id.id for each in known_again) == [
                each.remote_log_segment_id.id
                for each in answers[0]  # type: ignore[attr-defined]
            ], operation


async def test_a_cancelled_manager_keeps_its_earlier_snapshot(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk()
    env, topic = topic_on(disk)
    with trio.move_on_after(10):
        async with at_work(env, topic) as manager:
            await hold(manager, ORDERS)
            await copy(manager, segment_metadata(ORDERS, 0, 9))
            await trio.sleep_forever()
    assert log_path(ORDERS).rpartition("/")[0] in snapshot_path(ORDERS)
    assert not disk.exists(snapshot_path(ORDERS))
    assert (await answers_on(disk))[1] == 2
