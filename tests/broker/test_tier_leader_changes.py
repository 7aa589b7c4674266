"""The leader of a tiered partition changes while it copies: no hole, no orphan, and all records are read."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import FINISHED, STARTED
from tests.broker.several import MemoryCluster
from tests.broker.tiered_cluster import (
    TIERED,
    complaints,
    fill,
    knows_the_tier,
    read_all,
    segments,
    send,
    stored,
    tiered_cluster,
    until_led,
)
from wire.errors import ErrorCode

ALL = {1, 2, 3}


async def send_through(cluster: MemoryCluster, number: int) -> None:
    """Send a batch until it is acknowledged, as a producer does when leaders change."""
    while True:
        with trio.move_on_after(2):
            try:
                answer = await send(cluster, number)
            except (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionError, AssertionError):
                await trio.sleep(0.05)
                continue
            if answer.error_code == ErrorCode.NONE:
                assert answer.base_offset in (number, -1)
                return
        await trio.sleep(0.05)


async def settle(cluster: MemoryCluster, disk: SimulatedDisk, count: int) -> None:
    """Wait until all replicas are in sync and have locally what the tier does not have, and demand K9."""
    await cluster.until(lambda: cluster.isr() == ALL)
    await until_led(cluster)
    await cluster.until(lambda: all(knows_the_tier(cluster, one) for one in ALL))

    def is_done() -> bool:
        logs = [cluster.brokers[one].partition().log for one in sorted(ALL)]
        is_tidy = all(one.state is FINISHED for one in segments(cluster, cluster.leader()))
        return is_tidy and all((log.local_log_start_offset, log.log_end_offset) == (count - 1, count) for log in logs)

    await cluster.until(is_done)
    assert complaints(cluster, disk) == []
    await read_all(cluster, count)


def is_copying(cluster: MemoryCluster) -> bool:
    leader = cluster.leader()
    return knows_the_tier(cluster, leader) and any(one.state is STARTED for one in segments(cluster, leader))


async def fence(cluster: MemoryCluster, broker_id: int) -> None:
    """Have the controller fence a broker that does not learn it: it goes on as a leader."""
    cluster.brokers[broker_id].is_cut_from_controller = True
    await cluster.heartbeat(cluster.brokers[broker_id], want_fence=True)


async def change_leader(cluster: MemoryCluster, how: str) -> None:
    """Take the leadership from the leader for a while."""
    leader = cluster.leader()
    if how == "killed":
        await cluster.kill(leader)
    else:
        await fence(cluster, leader)
    await cluster.until(lambda: cluster.leader() not in (leader, -1))
    await until_led(cluster)


def slow_down(cluster: MemoryCluster) -> None:
    """Have each blocking call take up to 20 ms, so that a copy takes a while in each of its steps."""
    for running in cluster.brokers.values():
        running.env.latency_ms = 10


async def give_back(cluster: MemoryCluster, leader: int, how: str) -> None:
    """The earlier leader returns."""
    if how == "killed":
        await cluster.start(leader)
    else:
        cluster.brokers[leader].is_cut_from_controller = False
        await cluster.heartbeat(cluster.brokers[leader])


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "fenced"])
@pytest.mark.parametrize("seed", range(3))
async def test_m9_leader_changes_in_the_middle_of_copies(how: str, seed: int) -> None:
    """The leader changes at random moments of copies, so in each of their steps."""
    random = Random(seed)
    async with tiered_cluster() as (cluster, disk):
        slow_down(cluster)
        await cluster.create(**TIERED)
        count, steps = 0, set()
        for _ in range(12):
            for _ in range(3):
                await send_through(cluster, count)
                count += 1
            leader = cluster.leader()
            with trio.move_on_after(random.choice((0, 5))):
                await cluster.until(lambda: is_copying(cluster))
            await trio.sleep(random.uniform(0, 0.06))
            steps.add(is_copying(cluster))
            await change_leader(cluster, how)
            await send_through(cluster, count)
            count += 1
            await give_back(cluster, leader, how)
            await cluster.until(lambda: cluster.isr() == ALL)
            slow_down(cluster)
        assert steps == {False, True}, "some copies were interrupted"
        await settle(cluster, disk, count)


@pytest.mark.long
async def test_m8_a_dead_brokers_partial_copy_is_deleted_by_the_next_leader() -> None:
    seldom = {"remote.log.manager.task.interval.ms": 5_000, "log.retention.check.interval.ms": 5_000}
    async with tiered_cluster(settings=seldom) as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 4)
        slow_down(cluster)
        await send(cluster, 4)
        leader = cluster.leader()
        await cluster.until(lambda: is_copying(cluster))
        await cluster.kill(leader)
        await cluster.until(lambda: cluster.leader() not in (leader, -1))
        await fill(cluster, 2, start=5)
        await cluster.until(lambda: len(stored(disk)) >= 6)
        await trio.sleep(3_700)
        assert [one.state for one in segments(cluster, cluster.leader())] == [FINISHED] * 6
        assert complaints(cluster, disk) == []
        await read_all(cluster, 7)
