"""Deleting segments from the tier: after the log start offset was made durable, and independently of each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.config.leases import Lease
from kbroker.metadata.image import PartitionImage
from kbroker.replication.partition_reads import Fetcher
from kbroker.testing.env import MemoryEnv, MemoryThreads
from kbroker.tiered import expiring
from kbroker.tiered.api import RemoteLogSegmentState, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.plan import plan_expiry
from tests.tiered import tier_site
from tests.tiered.tier_site import FaultyStorage, Site, settings, tiered_config

HOUR_MS = 3_600_000
State = RemoteLogSegmentState


def started(site: Site, storage: FaultyStorage) -> None:
    """Replace the store of the site."""
    storage.configure({"dir": "/tier", "log.dir": "/data"})
    site.storage = site.manager.tools.storage = storage


async def test_kafka_15272_an_idle_topic_empties(autojump_clock: MockClock) -> None:
    """Without new records the active segment still rolls when it is due, is copied, and expires."""
    site = Site(config=tiered_config(local_retention_bytes=-2, local_retention_ms=HOUR_MS, retention_ms=2 * HOUR_MS))
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        for _ in range(30):
            await site.rounds()
            await site.retain(orders)
            assert not site.complaints(orders)
        assert len(orders.log.segments) == 3
        for _ in range(110):
            await site.rounds()
            await site.retain(orders)
        assert [segment.base_offset for segment in orders.log.segments] == [10]
        assert site.finished(orders) == [0, 4, 8], "an hour later all of it is only in the tier"
        assert orders.log.log_start_offset == 0
        assert not site.complaints(orders)
        for _ in range(120):
            await site.rounds()
            await site.retain(orders)
        assert site.segments(orders) == []
        assert orders.log.log_start_offset == orders.log.log_end_offset == 10
        assert site.objects() == set()


async def test_kafka_15047_an_expired_active_segment_rolls_and_is_copied_first(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(local_retention_bytes=-2, local_retention_ms=1_000, retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 2)
    async with site.at_work():
        assert len(orders.log.segments) == 1
        await trio.sleep(2)
        await site.retain(orders)
        assert [segment.base_offset for segment in orders.log.segments] == [0, 2], "rolled, and kept until it is copied"
        await site.rounds()
        assert site.finished(orders) == [0]
        await site.retain(orders)
        assert orders.log.local_log_start_offset == 2
        assert orders.log.log_start_offset == 0
        assert not site.complaints(orders)


async def test_kafka_15352_the_log_start_is_durable_before_objects_are_deleted(autojump_clock: MockClock) -> None:
    seen: list[tuple[int, int, int, int]] = []

    class Watching(FaultyStorage):
        def delete_log_segment_data(self, metadata):  # type: ignore[no-untyped-def]
            stored = orders.log.persisted_log_start_offset
            seen.append((metadata.end_offset, orders.log.log_start_offset, stored, len(site.woken)))
            super().delete_log_segment_data(metadata)

    site = Site(config=tiered_config(retention_bytes=1_000))
    started(site, Watching(site.disk))
    orders = site.add()
    site.append(orders, 40)
    async with site.at_work():
        await site.rounds()
        assert seen
        for end, start, stored, woken in seen:
            assert start > end
            assert stored == start
            assert woken > 1, "waiters of the partition are woken"
        assert not site.complaints(orders)


async def test_nothing_is_deleted_before_the_log_start_is_durable(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    failing = True
    write = site.write_log_starts

    async def write_log_starts() -> None:
        from wire.errors import ErrorCode, KafkaError

        if failing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space for it")
        await write()

    site.write_log_starts = write_log_starts  # type: ignore[method-assign]
    async with site.at_work():
        await trio.sleep(2 * 3_600)
        await site.settle()
        assert site.storage.deleted == []
        assert site.remote(orders).last_error.endswith("no space for it")
        failing = False
        await site.rounds(2)
        assert site.storage.deleted
        assert not site.complaints(orders)


async def test_retention_by_size_includes_local_only_segments(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_bytes=2_500))
    orders = site.add()
    site.append(orders, 60)
    async with site.at_work():
        await site.rounds(2)
        tier = sum(one.segment_size_in_bytes for one in site.segments(orders))
        here = orders.log.segments.active.size
        size = site.segments(orders)[0].segment_size_in_bytes
        assert tier + here <= 2_500 + size
        assert tier + here > 2_500 - size
        assert site.remote(orders).remote_size_bytes == tier
        assert site.remote(orders).remote_segments == len(site.segments(orders))
        assert (site.remote(orders).delete_lag_bytes, site.remote(orders).delete_lag_segments) == (0, 0)
        assert orders.log.log_start_offset == site.finished(orders)[0]
        assert not site.complaints(orders)


async def test_deleted_records_leave_the_tier(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await site.retain(orders)
        assert site.finished(orders)[:4] == [0, 4, 8, 12]
        orders.log.raise_log_start_offset(10)
        before = site.starts_written
        await site.rounds()
        assert site.finished(orders)[0] == 8, "the segment with the first remaining record is kept"
        assert site.storage.deleted == [0, 4]
        assert site.starts_written > before, "another task may have raised it without storing it"
        assert not site.complaints(orders)


async def test_objects_stay_until_the_in_sync_replicas_know_the_log_start(autojump_clock: MockClock) -> None:
    """The next leader would look for what is gone, and answer its readers with an error."""
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await site.retain(orders)
        assert site.finished(orders)[:3] == [0, 4, 8]
        epoch = orders.leader_epoch
        orders.apply(PartitionImage((1, 2), (1, 2), leader=1, leader_epoch=epoch, partition_epoch=epoch + 1))
        orders.log.raise_log_start_offset(10)
        await site.rounds()
        orders.on_follower_fetch(Fetcher(2), 30, log_start_offset=0)
        await site.rounds()
        assert site.storage.deleted == []
        orders.on_follower_fetch(Fetcher(2), 30, log_start_offset=10)
        await site.rounds()
        assert site.storage.deleted == [0, 4]
        assert not site.complaints(orders)


async def test_a_leader_copies_again_what_the_leader_before_it_has_deleted(autojump_clock: MockClock) -> None:
    """After an unclean election; the deletion may also become known late (seed 165 of the small plans)."""
    site = Site(config=tiered_config(local_retention_bytes=-2))
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await site.rounds()
        before = site.finished(orders)
        assert before[:2] == [0, 4]
        first = site.segments(orders)[0]
        await site.manager.tools.record(first, State.DELETE_SEGMENT_STARTED, None)
        site.storage.delete_log_segment_data(first)
        await site.manager.tools.record(first, State.DELETE_SEGMENT_FINISHED, None)
        assert site.finished(orders) == before[1:]
        await site.rounds()
        assert site.finished(orders) == before, "nothing else is copied twice"
        assert site.segments(orders)[0].remote_log_segment_id != first.remote_log_segment_id
        assert not site.complaints(orders)


async def test_kafka_16511_an_undeletable_segment_does_not_block_others(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    site.storage.undeletable = {4}
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        everything = site.finished(orders)
        await trio.sleep(3_700)
        await site.settle()
        assert sorted([*site.storage.deleted, 4]) == everything
        assert [one.start_offset for one in site.segments(orders)] == [4]
        assert site.remote(orders).delete_lag_segments == 1
        assert site.remote(orders).counters.delete_errors > 0
        assert orders.log.log_start_offset > 4
        site.storage.undeletable = set()
        await site.rounds()
        assert site.segments(orders) == []
        assert site.remote(orders).delete_lag_segments == 0


async def test_deletions_stop_early_when_the_store_does_not_answer(autojump_clock: MockClock) -> None:
    calls = 0

    class Counting(FaultyStorage):
        def delete_log_segment_data(self, metadata):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            super().delete_log_segment_data(metadata)

    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    started(site, Counting(site.disk))
    orders = site.add()
    site.append(orders, 80)
    async with site.at_work():
        assert len(site.segments(orders)) > 15
        site.storage.down = RetriableRemoteStorageError("503")
        await trio.sleep(3_600)
        calls = 0
        await trio.sleep(31)
        assert 0 < calls <= 2 * 3, "of two rounds, with some twenty segments each"
        assert site.remote(orders).counters.delete_errors == 0, "it is a temporary failure"
        site.storage.down = None
        await site.rounds(2)
        assert site.segments(orders) == []


async def test_stuck_deletions_are_retried_after_the_others(autojump_clock: MockClock) -> None:
    """Three segments whose deletion the store never answers do not block the fourth."""

    class Moody(FaultyStorage):
        def delete_log_segment_data(self, metadata):  # type: ignore[no-untyped-def]
            if metadata.start_offset in (0, 4, 8):
                raise RetriableRemoteStorageError("time-out")
            super().delete_log_segment_data(metadata)

    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    started(site, Moody(site.disk))
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await trio.sleep(3_600)
        await site.rounds(3)
        assert [one.start_offset for one in site.segments(orders)] == [0, 4, 8]


async def test_t2_m12_a_clock_jump_expires_nothing_in_the_tier(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=24 * HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        everything = site.finished(orders)
        assert len(everything) > 3
        site.env.wall_jump_ms = 365 * 24 * HOUR_MS
        await site.rounds(20)
        assert site.finished(orders) == everything
        assert orders.log.log_start_offset == 0
        site.env.wall_jump_ms = 0
        await trio.sleep(25 * 3_600)
        await site.settle()
        assert site.finished(orders) == [], "elapsed time still counts"


async def test_m12_failed_copies_do_not_displace_good_data(autojump_clock: MockClock) -> None:
    """The tier is full (507) for a while: failed copies do not count, and no local segment is deleted."""
    site = Site(config=tiered_config(retention_bytes=3_000))
    orders = site.add()
    site.append(orders, 12)
    async with site.at_work():
        await site.retain(orders)
        kept = site.finished(orders)
        assert kept == [0, 4]
        site.storage.after = True
        site.storage.copies = [RemoteStorageError("507 Insufficient Storage")] * 40
        site.storage.deletions = [RemoteStorageError("507")] * 40
        site.append(orders, 4)
        for _ in range(10):
            await site.rounds()
            await site.retain(orders)
            assert site.finished(orders) == kept
            assert orders.log.local_log_start_offset == 8
            assert orders.log.log_start_offset == 0
        site.storage.copies, site.storage.deletions = [], []
        await site.rounds(3)
        assert site.finished(orders) == [0, 4, 8]
        assert not site.complaints(orders)


async def test_m12_a_topic_deleted_during_a_copy_leaves_nothing(autojump_clock: MockClock) -> None:
    class Deleting(FaultyStorage):
        def copy_log_segment_data(self, metadata, data):  # type: ignore[no-untyped-def]
            if metadata.start_offset == 4:
                site.delete_topic(orders)
                site.manager._topic_ids = frozenset()
                site.manager._removed.add(orders.topic_id)
                site.manager._wanted = frozenset()
                site.manager._changed.set()
            return super().copy_log_segment_data(metadata, data)

    site = Site()
    started(site, Deleting(site.disk))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.rounds(2)
        assert orders.remote is None
        assert site.objects() == set()
        assert site.manager._registry.entries == frozenset()


async def test_an_old_orphan_of_another_broker_is_deleted(autojump_clock: MockClock) -> None:
    """The old leader may still be copying: its copy gets an hour."""
    from kbroker.tiered.api import RemoteLogSegmentId, RemoteLogSegmentMetadata
    from kbroker.tiered.tools import id_of

    site = Site()
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        left = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(id_of(orders), site.env.new_uuid()),
            start_offset=0,
            end_offset=5,
            max_timestamp_ms=0,
            broker_id=2,
            event_timestamp_ms=site.env.timestamp_ms(),
            segment_leader_epochs=((1, 0),),
            segment_size_in_bytes=10,
        )
        await site.metadata.add_remote_log_segment_metadata(left)
        await site.rounds(3)
        assert left in site.segments(orders)
        await trio.sleep(3_600)
        await site.settle()
        assert left.remote_log_segment_id not in [one.remote_log_segment_id for one in site.segments(orders)]
        assert site.finished(orders) == [0, 4]


@pytest.mark.parametrize("interval_ms", [1_000, 30_000])
async def test_rounds_run_at_the_configured_interval(interval_ms: int, autojump_clock: MockClock) -> None:
    site = Site(tier=settings(remote_log_manager_task_interval_ms=interval_ms))
    orders = site.add()
    async with site.at_work():
        site.append(orders, 10)
        await trio.sleep(interval_ms / 1000 - 0.1)
        await site.settle()
        assert site.finished(orders) == []
        await trio.sleep(0.2)
        await site.settle()
        assert site.finished(orders) == [0, 4]


async def test_segments_above_the_high_watermark_do_not_expire(autojump_clock: MockClock) -> None:
    """After an election the high watermark may be late: log_start_offset cannot pass it, so nothing is deleted."""
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        everything = site.finished(orders)
        await trio.sleep(3_500)
        assert orders.progress is not None
        orders.progress.high_watermark = 6
        await trio.sleep(300)
        assert orders.log.log_start_offset == 6
        assert site.finished(orders) == everything[1:], "the first ends below it"
        orders.progress.high_watermark = orders.log.log_end_offset
        await site.rounds(2)
        assert site.finished(orders) == []


async def test_a_copy_that_ends_while_expiry_plans_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The plan is made in a thread if there are many segments, from the metadata of when it was begun."""

    class Slow(MemoryEnv):
        async def run_blocking(self, function: Any, *arguments: Any) -> Any:
            if isinstance(function, partial) and function.func is plan_expiry:
                await trio.sleep(100)
            return await super().run_blocking(function, *arguments)

        def threads(self, max_threads: int) -> MemoryThreads:
            return SlowThreads(self, max_threads)

    class SlowThreads(MemoryThreads):
        async def run_blocking(self, function: Any, *arguments: Any) -> Any:
            await trio.sleep(70)
            return await super().run_blocking(function, *arguments)

    monkeypatch.setattr(expiring, "INLINE_SEGMENTS", 0)
    monkeypatch.setattr(tier_site, "MemoryEnv", Slow)
    site = Site()
    orders = site.add()
    site.append(orders, 10)
    async with site.at_work():
        await site.rounds(20)
        assert site.finished(orders) == [0, 4]
        assert site.storage.deleted == []


async def test_a_lease_holds_remote_segments_until_it_expires(autojump_clock: MockClock) -> None:
    site = Site(config=tiered_config(retention_ms=HOUR_MS))
    orders = site.add()
    site.append(orders, 20)
    now_ms = site.env.timestamp_ms()
    lease = Lease("a", now_ms, now_ms + 4 * HOUR_MS, {0: 9})
    site.reconfigure(orders, kbroker_retention_leases=frozenset({str(lease)}))
    async with site.at_work():
        for _ in range(200):  # of half a minute: past the retention
            await site.rounds()
        assert site.finished(orders)[0] == 8
        assert orders.log.log_start_offset == 8
        for _ in range(400):
            await site.rounds()
        assert site.segments(orders) == []
