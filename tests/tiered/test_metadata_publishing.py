"""Changes of the tier's metadata that are concurrent, abandoned or late: no sender waits forever."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_metadata import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS,
    OTHER,
    copy,
    hold,
    segment_metadata,
    update_to,
)
from kbroker.testing.remote_segments import partition_named
from kbroker.tiered.api import RemoteResourceNotFound, RetriableRemoteStorageError
from kbroker.tiered.metadata_publisher import MAX_BATCH_BYTES
from tests.tiered.metadata_site import (
    at_work,
    home_of,
    offsets_of,
    topic_on,
)
from wire.record_batch import batches


async def test_kafka_17766_concurrent_changes_and_assignments_do_not_deadlock(autojump_clock: MockClock) -> None:
    env, topic = topic_on(SimulatedDisk())
    partitions = [partition_named("many", index) for index in range(30)]
    async with at_work(env, topic) as manager:

        async def live(index: int) -> None:
            mine = partitions[index]
            for at in range(6):
                await hold(manager, mine)
                metadata = segment_metadata(mine, 10 * at, 10 * at + 9)
                await copy(manager, metadata)
                if index % 3 == 0:
                    await manager.on_stop_partitions([mine])
                elif at % 2:
                    await manager.update_remote_log_segment_metadata(update_to(metadata, DELETING))
                    await manager.update_remote_log_segment_metadata(update_to(metadata, DELETED))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for index in range(len(partitions)):
                    nursery.start_soon(live, index)
            await hold(manager, *partitions)
        for index, each in enumerate(partitions):
            left = [at for at in range(6) if index % 3 == 0 or not at % 2]
            assert offsets_of(manager.list_remote_log_segments(each)) == [(10 * at, FINISHED) for at in left]


async def test_concurrent_changes_are_stored_in_one_batch() -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        async with trio.open_nursery() as nursery:
            for at in range(200):
                nursery.start_soon(manager.add_remote_log_segment_metadata, segment_metadata(ORDERS, at, at))
        log = topic.logs[home_of(ORDERS)]
        assert log.log_end_offset == 200
        assert len(manager.list_remote_log_segments(ORDERS)) == 200
        assert log.size < 200 * 150, "one batch per change would have more headers"


async def test_a_change_is_validated_after_the_previous_one() -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        metadata = await copy(manager, segment_metadata(ORDERS, 0, 9))
        await manager.update_remote_log_segment_metadata(update_to(metadata, DELETING))
        errors: list[RemoteResourceNotFound] = []

        async def finish_deletion() -> None:
            try:
                await manager.update_remote_log_segment_metadata(update_to(metadata, DELETED))
            except RemoteResourceNotFound as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(finish_deletion)
        assert len(errors) == 2
        assert manager.list_remote_log_segments(ORDERS) == []
        assert topic.logs[home_of(ORDERS)].log_end_offset == 4, "an invalid change is not written"


async def test_an_abandoned_change_is_not_written() -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        topic.commits = False
        under_way, given_up, later = (segment_metadata(ORDERS, start, start + 9) for start in (0, 10, 20))
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as impatient:
                for each in (under_way, given_up):
                    impatient.start_soon(manager.add_remote_log_segment_metadata, each)
                    await wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            nursery.start_soon(manager.add_remote_log_segment_metadata, later)
            await wait_all_tasks_blocked()
            topic.commits = True
            topic.commit_all()
        assert sorted(each.start_offset for each in manager.list_remote_log_segments(ORDERS)) == [0, 20]


async def test_many_changes_are_split_into_batches() -> None:
    env, topic = topic_on(SimulatedDisk())
    custom = bytes(100)
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        async with trio.open_nursery() as nursery:
            for at in range(3_000):
                nursery.start_soon(
                    manager.add_remote_log_segment_metadata,
                    replace(segment_metadata(ORDERS, at, at), custom_metadata=custom),
                )
        data = topic.logs[home_of(ORDERS)].read(0, max_bytes=8 << 20).read()
        sizes = [each.size for each in batches(data)]
        assert len(data) > 3 * MAX_BATCH_BYTES / 2
        assert max(sizes) < 1.1 * MAX_BATCH_BYTES, "the overhead of the records is small"
        assert len(sizes) <= 4


async def test_an_ended_manager_answers_queries_but_rejects_changes() -> None:
    env, topic = topic_on(SimulatedDisk())
    async with at_work(env, topic) as manager:
        await hold(manager, ORDERS)
        known = await copy(manager, segment_metadata(ORDERS, 0, 9))
    with pytest.raises(RetriableRemoteStorageError, match="has ended"):
        await manager.add_remote_log_segment_metadata(segment_metadata(ORDERS, 10, 19))
    assert manager.list_remote_log_segments(ORDERS) == [known]
    await manager.on_partition_leadership_changes([OTHER], [])
    with pytest.raises(RetriableRemoteStorageError, match="has ended"):
        await manager.wait_until_ready(OTHER)
