"""Copying is disabled, or topics leave the tier or are deleted: no data are lost, and no orphans stay."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kbroker.storage.checkpoint import read_file
from kbroker.tiered.api import (
    RemoteLogSegmentState,
    RetriableRemoteStorageError,
)
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import Site, settings, tiered_config

HOUR_MS = 3_600_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


async def test_kafka_17236_local_retention_works_with_copying_disabled(autojump_clock: MockClock) -> None:
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
        assert site.segments(orders) == [], "remote data expire as before"
        site.reconfigure(orders, remote_log_copy_disable=False, local_retention_bytes=0)
        await site.changed()
        await site.settle()
        assert site.finished(orders), "copying can be enabled again"
        assert site.finished(orders)[0] >= orders.log.log_start_offset - 3
        assert not site.complaints(orders)


async def test_data_in_the_tier_stay_readable_with_copying_disabled(autojump_clock: MockClock) -> None:
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


async def test_kip_950_leaving_the_tier_drops_remote_only_data(autojump_clock: MockClock) -> None:
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
        assert not site.metadata.is_ready(id_of(orders)), "its metadata are not followed any more"
        # And back again: the local segments are copied again, although they had been copied before.
        site.append(orders, 4)
        site.reconfigure(orders, remote_storage_enable=True)
        await site.changed()
        await site.rounds()
        assert site.finished(orders)[0] == local
        assert not site.complaints(orders)


async def test_segments_deleted_from_the_tier_stay_local_after_a_return(autojump_clock: MockClock) -> None:
    """Segments that were copied once are still local, but their copies are deleted: they count as not copied."""
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


async def test_only_the_leader_deletes_the_data_of_a_topic_that_stays(autojump_clock: MockClock) -> None:
    """A follower may not know yet that the topic is tiered again. The next leader deletes what an earlier one left."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        before = site.objects()
        site.lead(orders, leader=2)
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        await site.changed()
        await site.rounds(5)
        assert site.objects() == before
        site.lead(orders)
        await site.changed()
        await site.settle()
        assert site.objects() == set()
        assert site.manager._registry.entries == frozenset()


@pytest.mark.parametrize("change", ["leader", "tiered again"])
async def test_a_deletion_ends_with_its_reason(change: str, autojump_clock: MockClock) -> None:
    """Deletions take a minute each, and one thread makes them."""
    site = Site(tier=settings(remote_log_manager_expiration_thread_pool_size=1))

    class SlowThreads:
        async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
            await trio.sleep(60)
            return function(*arguments)

    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        assert len(site.objects()) == 4
        site.manager.tools.delete_threads = SlowThreads()  # type: ignore[assignment]
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        await site.changed()
        await trio.sleep(90)
        if change == "leader":
            site.lead(orders, leader=2)
        else:
            site.reconfigure(orders, remote_storage_enable=True)
        await site.changed()
        await trio.sleep(300)
        assert site.storage.deleted == [0, 4], "one was deleted before the change, one was being deleted"


async def test_kafka_15130_the_deletion_of_a_topic_resumes_after_restarts(autojump_clock: MockClock) -> None:
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
        site = site.again(removed=frozenset())  # the registry has the mark
        site.storage.down = None if is_up else RetriableRemoteStorageError("down")
        others = site.add("others")
        async with site.at_work():
            await site.rounds(2)
            ours = {one.remote_log_segment_id.id for one in site.segments(others)}
            assert len(ours) == 1
            assert (site.objects() == ours) is is_up


async def test_all_threads_delete_segments_of_a_deleted_topic(autojump_clock: MockClock) -> None:
    """Each deletion takes a minute: nine of them, three threads, and another partition gets its turn in between."""
    running = most = 0

    class SlowThreads:
        async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep(60)
            running -= 1
            return function(*arguments)

        def resize(self, limit: int) -> None:
            raise AssertionError(limit)

    site = Site(tier=settings(remote_log_manager_expiration_thread_pool_size=3))
    orders, others = site.add(), site.add("others")
    site.append(orders, 38)
    site.append(others, 9)
    async with site.at_work():
        assert len(site.segments(orders)) == 9
        site.manager.tools.delete_threads = SlowThreads()
        site.delete_topic(orders)
        await site.changed()
        site.reconfigure(others, retention_bytes=800)
        await site.changed()
        await trio.sleep(4 * 60 + 30)
        assert len(site.finished(others)) == 1
        assert site.objects() == {one.remote_log_segment_id.id for one in site.segments(others)}
        assert most == 3


async def test_m8_a_topic_deleted_before_a_crash_leaves_nothing(autojump_clock: MockClock) -> None:
    """The metadata log has the removal of the topic, but the tier was not notified."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        assert site.objects()
    site.close()
    again = site.again(removed=frozenset({orders.topic_id}))
    async with again.at_work():
        assert again.objects() == set()
        assert again.manager._registry.entries == frozenset()
        assert read_file(again.disk, again.manager._registry.path) == b"0\n0\n"


async def test_objects_of_unknown_topics_are_kept(autojump_clock: MockClock) -> None:
    """The metadata may be an older backup; once they have the topic again, everything is as before."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        before = site.objects()
    site.close()
    again = site.again(removed=frozenset({UUID(int=7)}))
    async with again.at_work():
        await again.rounds(3)
        assert again.objects() == before
        assert again.manager.unknown_partitions == 1
    again.close()
    restored = again.again()
    orders = restored.add()
    async with restored.at_work():
        await restored.rounds()
        assert restored.manager.unknown_partitions == 0
        assert not restored.complaints(orders)


async def test_the_search_of_the_metadata_log_is_retried(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        assert site.objects()
    site.close()
    again = site.again()
    answers = [OSError(24, "too many open files"), frozenset({orders.topic_id})]

    def find_removed() -> frozenset[UUID]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    again.manager._find_removed = find_removed
    async with again.at_work():
        assert again.objects()
        await again.rounds()
        assert again.objects() == set()
        assert not answers, "only as much as necessary"


async def test_a_topic_named_removed_is_not_treated_as_removed(autojump_clock: MockClock) -> None:
    site = Site()
    site.append(site.add("removed"), 20)
    async with site.at_work():
        before = site.objects()
    site.close()
    again = site.again()
    async with again.at_work():
        await again.rounds()
        assert again.objects() == before


async def test_a_new_topic_of_the_same_name_is_independent(autojump_clock: MockClock) -> None:
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


async def test_a_topic_tiered_again_before_a_crash_keeps_its_start(autojump_clock: MockClock) -> None:
    """Its metadata list segments that are all deleted, so the tier has nothing of it."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.retain(orders)
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        await site.changed()
        await site.rounds()
        assert site.objects() == set()
        began = orders.log.log_start_offset
        assert began > 10
    site.close()
    plain = site.again(config=tiered_config(remote_storage_enable=False))
    plain.add()
    plain.close()
    again = plain.again(config=tiered_config())
    orders = again.add()
    assert orders.log.log_start_offset == 0, "its segment names no longer give the log start"
    async with again.at_work():
        assert orders.log.log_start_offset == began
        await again.rounds()
        assert not again.complaints(orders)
