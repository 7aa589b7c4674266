"""Brokers that lose their leader: what is acknowledged survives, and replicas become equal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from kbroker.client.streaming import ConnectionClosed
from tests.broker.several import MemoryCluster, memory_cluster, values
from wire.errors import ErrorCode
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic

SHORT_LAG = {"replica.lag.time.max.ms": 10_000}


async def test_r1_acknowledged_records_survive_the_death_of_a_leader() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(min_insync_replicas=2)
        acknowledged = []
        for number in range(5):
            leader = cluster.leader()
            value = b"%d" % number
            assert not (await cluster.produce([value], to=leader)).error_code
            acknowledged.append(value)
            await cluster.kill(leader)
            await cluster.until(lambda: cluster.leader() not in (-1, leader))  # noqa: B023 - awaited here
            elected = cluster.leader()
            await cluster.until(lambda: cluster.brokers[elected].partition().is_leader)  # noqa: B023
            await cluster.start(leader)
            await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()
        assert values(cluster.bytes_of(1)) == acknowledged


async def test_r8_a_deposed_leader_drops_what_was_not_acknowledged() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(min_insync_replicas=2)
        await cluster.produce([b"kept"], to=1)
        for follower in (2, 3):
            cluster.cut(follower, 1)
        assert not (await cluster.produce([b"only on 1"], to=1, acks=1)).error_code
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() == 2)
        await cluster.until(lambda: cluster.brokers[2].partition().is_leader)
        assert not (await cluster.produce([b"new"], to=2)).error_code
        await cluster.start(1)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()
        assert values(cluster.bytes_of(1)) == [b"kept", b"new"]


async def test_r4_a_leader_without_controllers_acknowledges_nothing() -> None:
    """It still believes that it leads, but its followers have another leader, and it cannot shrink the ISR."""
    async with memory_cluster(settings=SHORT_LAG) as cluster:
        await cluster.create(min_insync_replicas=1)
        await cluster.produce([b"kept"], to=1)
        cluster.brokers[1].is_cut_from_controller = True
        await cluster.until(lambda: cluster.leader() == 2)
        assert cluster.brokers[1].partition().is_leader, "it has not heard of the election"
        lost = await cluster.produce([b"lost"], to=1, timeout_ms=40_000)
        assert lost.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert not (await cluster.produce([b"new"], to=2)).error_code
        cluster.brokers[1].is_cut_from_controller = False
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()
        assert values(cluster.bytes_of(1)) == [b"kept", b"new"]


OFFSETS = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 3}


def commit_of(offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(
        group_id="readers", topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])], member_id=""
    )


async def committed(cluster: MemoryCluster, broker: int) -> tuple[int, int]:
    """The error code and the offset that a broker answers."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    async with cluster.client(broker) as client:
        answer = await client.ask(OffsetFetchRequest(group_id="readers", topics=topics), version=7)
    return (answer.error_code, -1) if answer.error_code else (0, answer.topics[0].partitions[0].committed_offset)


async def test_r11_committed_offsets_survive_the_death_of_their_coordinator() -> None:
    """The coordinator of a group moves with the leader of its partition of `__consumer_offsets`."""
    async with memory_cluster(settings=OFFSETS) as cluster:
        await cluster.create()
        await cluster.create("__consumer_offsets", replicas=((1, 2, 3),), min_insync_replicas=2)
        async with cluster.client(1) as client:
            answer = await client.ask(commit_of(7), version=7)
        assert not answer.topics[0].partitions[0].error_code
        assert await committed(cluster, 2) == (ErrorCode.NOT_COORDINATOR, -1)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader("__consumer_offsets") == 2)
        await trio.sleep(5)  # until the coordinator has loaded its partition
        assert await committed(cluster, 2) == (0, 7)
        await cluster.start(1)
        assert (await committed(cluster, 1))[0] == ErrorCode.NOT_COORDINATOR


@asynccontextmanager
async def cut_off_coordinator() -> AsyncIterator[MemoryCluster]:
    """Broker 1 coordinates `readers`. Its followers have their commit of 7, but cannot fetch that of 9."""
    async with memory_cluster(settings=OFFSETS) as cluster:
        await cluster.create()
        await cluster.create("__consumer_offsets", replicas=((1, 2, 3),), min_insync_replicas=2)
        async with cluster.client(1) as client:
            await client.ask(commit_of(7), version=7)
            assert await committed(cluster, 1) == (0, 7)
            for follower in (2, 3):
                cluster.cut(follower, 1)
            answer = await client.ask(commit_of(9), version=7)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        yield cluster


async def test_r11_an_offset_is_not_shown_before_all_replicas_have_it() -> None:
    """Otherwise the next coordinator, which may lack it, would show an earlier offset (K10)."""
    async with cut_off_coordinator() as cluster:
        assert await committed(cluster, 1) == (ErrorCode.NOT_COORDINATOR, -1)
        for follower in (2, 3):
            cluster.mend(follower)
        await cluster.until(lambda: cluster.isr("__consumer_offsets") == {1, 2, 3})
        await trio.sleep(5)
        assert await committed(cluster, 1) == (0, 9)


async def test_all_groups_of_an_offset_fetch_wait_together() -> None:
    async with cut_off_coordinator() as cluster, cluster.client(1) as client:
        groups = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(20)]
        began = trio.current_time()
        answer = await client.ask(OffsetFetchRequest(groups=groups))
        assert {one.error_code for one in answer.groups} == {ErrorCode.NOT_COORDINATOR}
        assert trio.current_time() - began < 6  # offsets.commit.timeout.ms is 5,000


async def test_an_offset_fetch_stops_waiting_when_its_client_leaves() -> None:
    key = "__consumer_offsets", 0
    async with cut_off_coordinator() as cluster, trio.open_nursery() as nursery:
        purgatory = cluster.brokers[1].broker.purgatory
        await cluster.until(lambda: not purgatory.waiting(key))
        began = trio.current_time()
        nursery.start_soon(committed, cluster, 1)
        await cluster.until(lambda: purgatory.waiting(key))
        nursery.cancel_scope.cancel()  # closes the connection
        with trio.CancelScope(shield=True):
            await cluster.until(lambda: not purgatory.waiting(key))
        assert trio.current_time() - began < 1


async def test_r13_a_new_leader_answers_offset_not_available_at_first() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        for value in (b"a", b"b"):
            await cluster.produce([value], to=1)
        cluster.cut(3, 2)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.brokers[2].partition().is_leader)
        leader = cluster.brokers[2].partition()
        assert leader.known_high_watermark < 2, "the followers learn the high watermark with a later answer"
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])],
        )
        async with cluster.client(2) as client:
            answer = await client.ask(request, version=7)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            cluster.mend(3)
            await cluster.until(lambda: leader.known_high_watermark == 2)
            answer = await client.ask(request, version=7)
            assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
async def test_r1_random_deaths_and_cuts_lose_nothing_acknowledged(seed: int) -> None:
    """K1 and K2: each acknowledged record is in the log once the cluster is whole, in order; replicas are equal."""
    draw = Random(seed)
    delays = {one: draw.choice([0, 3, 40]) for one in (1, 2, 3)}
    async with memory_cluster(settings=SHORT_LAG, delays_ms=delays) as cluster:
        await cluster.create(min_insync_replicas=2)
        acknowledged: list[bytes] = []
        sent = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_disturb, cluster, draw, nursery.cancel_scope)
            while True:
                await trio.sleep(0.1)
                leader = cluster.leader()
                value = b"%d" % sent
                sent += 1
                try:
                    answer = await cluster.produce([value], to=leader, timeout_ms=3_000)
                except (ConnectionClosed, OSError):  # the broker has died: the record is not acknowledged
                    continue
                if answer.error_code == ErrorCode.NONE:
                    acknowledged.append(value)
        for one in (1, 2, 3):
            if one not in cluster.brokers:
                await cluster.start(one)
            cluster.mend(one)
            cluster.brokers[one].is_cut_from_controller = False
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()
        stored = values(cluster.bytes_of(1))
        order = {value: place for place, value in enumerate(stored)}
        assert len(acknowledged) > 20
        missing = [value for value in acknowledged if value not in order]
        assert not missing
        places = [order[value] for value in acknowledged]
        assert places == sorted(places)
        assert len(order) == len(stored), "one producer's records are stored once each: it sends nothing twice"


async def _disturb(cluster: MemoryCluster, draw: Random, whole: trio.CancelScope) -> None:
    for _ in range(25):
        await trio.sleep(draw.uniform(0.1, 4))
        running, step = list(cluster.brokers), draw.random()
        down = [one for one in (1, 2, 3) if one not in running]
        if step < 0.3 and len(running) == 3:
            await cluster.kill(draw.choice(running))
        elif step < 0.7 and down:
            await cluster.start(down[0])
        elif step < 0.85:
            one, other = draw.sample([1, 2, 3], 2)
            if one in cluster.brokers:
                cluster.cut(one, other)
        elif step < 0.9:
            cluster.brokers[draw.choice(running)].is_cut_from_controller = True
        else:
            for one, broker in cluster.brokers.items():
                cluster.mend(one)
                broker.is_cut_from_controller = False
    whole.cancel()
