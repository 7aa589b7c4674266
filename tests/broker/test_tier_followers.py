"""Followers of a tiered partition whose leader has deleted old segments locally: they are built from the tier."""

from __future__ import annotations

import errno

import pytest
import trio

from kbroker.testing.disk import Fault
from tests.broker.several import MemoryCluster
from tests.broker.shared_store import TIER
from tests.broker.tiered_cluster import TIERED, complaints, fill, read_all, replace_disk, send, tiered_cluster

CANNOT = "a follower cannot be built from the tier yet; will retry"


async def join(cluster: MemoryCluster) -> tuple[int, int, int]:
    """Start broker 3, and wait until it is in sync and equal to the others. Returns where its log starts, where its
    local log starts, and where it ends.
    """
    await cluster.start(3)
    await cluster.until(lambda: cluster.isr() == {1, 2, 3})
    await cluster.agree()
    log = cluster.brokers[3].partition().log
    return log.log_start_offset, log.local_log_start_offset, log.log_end_offset


async def test_m11_a_replica_with_an_empty_disk_is_built_from_the_tier() -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await replace_disk(cluster, 3)
        assert await join(cluster) == (0, 9, 10)
        remote = cluster.brokers[3].partition().remote
        assert remote is not None
        assert remote.counters.build_requests == remote.counters.build_errors + 1
        assert complaints(cluster, disk) == []


async def test_a_follower_that_is_built_leads_without_loss() -> None:
    """It reads the tier by the leader epochs of all earlier leaders, and knows the batches of the producers."""
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 4)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() == 2)
        await fill(cluster, 4, start=4)
        await cluster.start(1)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await fill(cluster, 4, start=8)
        await replace_disk(cluster, 3)
        await join(cluster)
        assert len(cluster.brokers[3].partition().log.leader_epochs) > 1
        await cluster.kill(2)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() == 3)
        again = await send(cluster, 10)
        assert (again.error_code, again.base_offset) == (0, 10), "a retry is recognized"
        sent = await send(cluster, 12)
        assert (sent.error_code, sent.base_offset) == (0, 12)
        await read_all(cluster, 13)


async def test_a_follower_that_was_away_continues_at_the_local_start() -> None:
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 4)
        await cluster.kill(3)
        await fill(cluster, 6, start=4)
        assert await join(cluster) == (0, 9, 10)


async def test_a_follower_is_not_built_while_a_task_keeps_its_log() -> None:
    """Such as the one that renames files of old segments in a thread, which a build would do as well."""
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 4)
        await cluster.kill(3)
        await fill(cluster, 6, start=4)
        await cluster.start(3)
        log = cluster.brokers[3].partition().log
        async with cluster.brokers[3].broker.kept(log):
            await trio.sleep(30)
            assert log.log_end_offset == 4
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        assert log.local_log_start_offset == 9


async def test_the_whole_log_starts_where_the_leaders_does() -> None:
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await cluster.brokers[1].broker.delete_records("t", 0, 5)
        await replace_disk(cluster, 3)
        assert await join(cluster) == (5, 9, 10)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_m11_a_failing_store_delays_only_its_followers(error: int, caplog: pytest.LogCaptureFixture) -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await cluster.create("local")
        await replace_disk(cluster, 3)
        disk.inject(Fault(error, name="open", path=f"{TIER}/*.snapshot", times=-1))
        await cluster.start(3)
        await cluster.until(lambda: cluster.isr("local") == {1, 2, 3})
        assert not (await cluster.produce([b"x"], to=1, topic="local")).error_code
        await trio.sleep(30)
        assert cluster.isr() == {1, 2}
        remote = cluster.brokers[3].partition().remote
        assert remote is not None
        assert remote.counters.build_requests == remote.counters.build_errors > 1
        assert 1 <= [record.message for record in caplog.records].count(CANNOT) <= 5
        disk.heal()
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()


async def test_a_broker_without_a_tier_says_why_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await replace_disk(cluster, 3)
        await cluster.start(3, settings={"remote.log.storage.system.enable": "false"})
        await trio.sleep(30)
        assert cluster.isr() == {1, 2}
        said = [record for record in caplog.records if record.message == CANNOT]
        assert said
        assert "remote.log.storage.system.enable=false" in str(vars(said[0]))
        assert not (await send(cluster, 10)).error_code


@pytest.mark.long
async def test_m11_a_follower_killed_during_builds_is_built_later() -> None:
    async with tiered_cluster() as (cluster, _):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await replace_disk(cluster, 3)
        ends: set[int] = set()
        for life in range(30):
            await cluster.start(3)
            await trio.sleep(0.1 * life)
            log = cluster.brokers[3].partition().log
            ends.add(log.log_end_offset)
            if log.log_end_offset:
                assert (log.leader_epochs.entries, set(log.producers.producers)) == ([(0, 0)], {7})
                await cluster.kill(3)
                del cluster.disks[3]
            else:
                await cluster.kill(3)
        assert len(ends) > 1
        await join(cluster)


async def test_a_leader_that_changes_during_a_build_is_followed() -> None:
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 10)
        await replace_disk(cluster, 3)
        disk.inject(Fault(errno.ENOSPC, name="open", path=f"{TIER}/*.snapshot", times=-1))
        await cluster.start(3)
        await trio.sleep(5)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() == 2)
        disk.heal()
        await cluster.until(lambda: cluster.isr() == {2, 3})
        await cluster.agree()
