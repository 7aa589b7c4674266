"""When and how fast segments are copied: flushes, quotas, stops."""

from __future__ import annotations

from collections import Counter

import trio
from trio.testing import MockClock

from kbroker.tiered.api import RemoteLogSegmentState, TopicIdPartition
from kbroker.tiered.manager import ROUNDS_AT_ONCE, STOP_GRACE_MS
from tests.tiered.tier_site import Site, settings, tiered_config

HOUR_MS = 3_600_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


async def test_a_flush_copies_records_older_than_its_request(autojump_clock: MockClock) -> None:
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
        assert site.finished(orders) == [0], "later records stay until their segment rolls"
        site.reconfigure(orders, kbroker_remote_flush_timestamp_ms=site.env.timestamp_ms())
        await site.changed()
        await site.settle()
        assert site.finished(orders) == [0, 2]


async def test_an_interrupted_flush_continues_after_a_restart(autojump_clock: MockClock) -> None:
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


async def test_the_copy_quota_covers_all_partitions(autojump_clock: MockClock) -> None:
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
        assert all(site.remote(one).waits_for_quota for one in site.partitions.values())
        site.manager.reconfigure(settings(**{**limits, "remote_log_manager_copy_max_bytes_per_second": 10_000}))
        await trio.sleep(5)
        assert all(site.remote(one).copy_lag_segments == 0 for one in site.partitions.values())
        assert sum(site.remote(one).copy_lag_bytes for one in site.partitions.values()) == 0
        assert not any(site.remote(one).waits_for_quota for one in site.partitions.values())


async def test_kafka_15265_a_quota_applies_to_the_first_copy_after_restart(autojump_clock: MockClock) -> None:
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


async def test_a_stop_finishes_the_running_copy_only(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    site.manager.tools.copy_threads = MinuteThreads()
    async with site.at_work():
        await trio.sleep(10)
        await site.manager.stop(grace_ms=90_000)
        assert site.storage.copied == [0]
        assert site.finished(orders) == [0]


async def test_the_next_start_cleans_up_after_a_slow_stop(autojump_clock: MockClock) -> None:
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


# --- independence of copies and deletions -----------------------------------------------------------------------------


class StuckThreads:
    """Threads in which requests to the store never return."""

    async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
        if function.__name__ in ("_copy_data", "delete_data"):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    def resize(self, limit: int) -> None: ...


async def test_kafka_16853_stuck_copies_do_not_block_deletions(autojump_clock: MockClock) -> None:
    one_each = settings(remote_log_manager_copier_thread_pool_size=1, remote_log_manager_expiration_thread_pool_size=1)
    site = Site(tier=one_each, config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        everything = site.finished(orders)
        site.manager.tools.copy_threads = StuckThreads()
        site.append(site.add("others"), 20)
        await site.changed()
        await trio.sleep(3_700)
        assert site.storage.deleted == everything
        await site.manager.stop(grace_ms=1_000)


async def test_kafka_16853_stuck_deletions_do_not_block_copies(autojump_clock: MockClock) -> None:
    one_each = settings(remote_log_manager_copier_thread_pool_size=1, remote_log_manager_expiration_thread_pool_size=1)
    site = Site(tier=one_each, config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        site.manager.tools.delete_threads = StuckThreads()
        await trio.sleep(3_700)
        assert site.storage.deleted == []
        site.append(orders, 20)
        others = site.add("others")
        site.append(others, 20)
        await site.changed()
        await site.rounds(2)
        assert site.remote(orders).copy_lag_segments == site.remote(others).copy_lag_segments == 0
        assert site.finished(others)


async def test_kafka_15260_nothing_is_copied_before_the_metadata_are_read(autojump_clock: MockClock) -> None:
    """Otherwise it would copy again what the tier already has."""
    site = Site()
    site.append(site.add(), 20)
    async with site.at_work():
        assert len(site.storage.copied) == 4
    site.close()
    again = site.again()
    orders = again.add()
    again.topic.set_reachable(False)
    async with again.at_work():
        again.append(orders, 10)
        await again.rounds(5)
        assert again.storage.copied == []
        assert again.remote(orders).copy_lag_segments > 4, "as far as it is known"
        again.topic.set_reachable(True)
        await trio.sleep(40)
        await again.settle()
        assert again.storage.copied[0] == 16
        assert again.remote(orders).copy_lag_segments == 0
        assert not again.complaints(orders)


async def test_a_cancelled_manager_ends_within_the_grace_period(autojump_clock: MockClock) -> None:
    """A running copy gets the grace period of a stop, although no stop was requested."""
    site = Site()
    site.append(site.add(), 20)
    site.manager.tools.copy_threads = StuckThreads()
    async with site.at_work(stops=False):
        assert site.manager._unfinished
        began = trio.current_time()
    assert trio.current_time() - began == STOP_GRACE_MS / 1000


async def test_rounds_of_many_partitions_do_not_starve_clients(autojump_clock: MockClock) -> None:
    site = Site()
    for number in range(200):
        site.add(f"topic{number}")
    begun: Counter[int] = Counter()
    turn = 0
    async with site.at_work():
        real = site.metadata.wait_until_ready

        async def wait_until_ready(partition: TopicIdPartition) -> None:
            begun[turn] += 1
            await real(partition)

        site.metadata.wait_until_ready = wait_until_ready  # type: ignore[method-assign]
        autojump_clock.jump(31)
        for turn in range(1, 100):  # noqa: B007 - told to the function above
            await trio.lowlevel.checkpoint()
    assert sum(begun.values()) == 400
    assert max(begun.values()) <= ROUNDS_AT_ONCE
