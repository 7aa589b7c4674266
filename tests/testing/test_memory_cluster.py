"""A cluster of real nodes in virtual time: what its faults do, and that a seed decides a run."""

from __future__ import annotations

import gc
from hashlib import blake2b
from typing import Any
from weakref import ReferenceType, ref

import pytest
import trio

from kbroker.testing.cluster import CLIENT, MemoryCluster, memory_cluster
from kbroker.testing.determinism import run
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.frames import FrameFault
from kbroker.testing.memory_node import Client
from kbroker.testing.model_reader import fetch_request
from kbroker.testing.network import Pace
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, RecordBatch, build_batch

FSYNC_MS = 3_000
DELAY_MS = 5_000


def request(value: bytes, *, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=build_batch([Record(timestamp=1_700_000_000_000, value=value)]))
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


async def produce(client: Client, value: bytes = b"x") -> int:
    answer = await client.ask(request(value), version=9)
    found = answer.responses[0].partition_responses[0]
    assert not found.error_code, found
    offset: int = found.base_offset
    return offset


async def ended(client: Client) -> bool:
    """Whether the other side has closed the connection."""
    return not await client.stream.receive(1)


async def story(seen: list[str], seed: int) -> None:
    """Records, a lost reply, a cut link, and a leader that loses its power."""
    async with memory_cluster(3, seed=seed, pace=Pace(split=0.1)) as cluster:
        digest = blake2b(digest_size=8)

        def trace(*what: object) -> None:
            digest.update(repr((trio.current_time(), *what)).encode())

        cluster.trace = cluster.network.trace = cluster.store.trace = trace
        await cluster.create_topic(
            "t", replicas=3, min_insync_replicas=2, remote_storage_enable="true", segment_bytes=1_000
        )
        leader = cluster.leader("t")
        client = await cluster.connect(leader)
        for number in range(20):
            await produce(client, b"%d" % number * 50)
        cluster.network.drop_reply(CLIENT, ProduceRequest)
        await client.send(request(b"lost"), version=9)
        assert await ended(client)
        cluster.network.cut(leader, next(each for each in cluster.brokers if each is not leader))
        await (await cluster.connect(leader)).send(request(b"one replica gets it later"), version=9)
        await cluster.until(lambda: len(cluster.partition("t").isr) == 2)
        cluster.network.mend()
        await leader.kill(loss=Loss.SECTORS)
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader.id))
        await leader.start()
        await cluster.until(lambda: len(cluster.partition("t").isr) == 3)
        await trio.sleep(60)
        seen.append(digest.hexdigest())
        seen.extend(map(str, cluster.events.lines))


@pytest.mark.long
def test_k16_a_seed_decides_every_event_of_a_run() -> None:
    first: list[str] = []
    again: list[str] = []
    other: list[str] = []
    run(story, first, 1, seed=1)
    run(story, again, 1, seed=1)
    run(story, other, 2, seed=2)
    assert first == again
    assert first[0] != other[0]


async def with_topic(cluster: MemoryCluster) -> Client:
    await cluster.create_topic("t", replicas=3, min_insync_replicas=2)
    return await cluster.connect(cluster.leader("t"))


def in_cluster(test: Any) -> Any:
    """Run an async test with a cluster and a client of the leader of t-0."""

    def call() -> None:
        async def main() -> None:
            async with memory_cluster(3) as cluster:
                await test(cluster, await with_topic(cluster))

        run(main, seed=3)

    call.__name__ = test.__name__
    return call


@in_cluster
async def test_records_survive_the_death_of_their_leader(cluster: MemoryCluster, client: Client) -> None:
    assert [await produce(client) for _ in range(3)] == [0, 1, 2]
    dead = cluster.leader("t")
    await dead.kill()
    assert await ended(client)
    await cluster.until(lambda: cluster.partition("t").leader not in (-1, dead.id))
    successor = cluster.leader("t")  # a moment later it learns of it itself
    await cluster.until(lambda: successor.broker.replicas.partitions["t", 0].is_leader)
    assert await produce(await cluster.connect(successor)) == 3


@pytest.mark.long
@in_cluster
async def test_a_peer_without_power_says_nothing_until_it_is_back(cluster: MemoryCluster, client: Client) -> None:
    dead = cluster.leader("t")
    await dead.kill(loss=Loss.ONLY_SYNCED)
    with trio.move_on_after(600) as minutes:
        await ended(client)
    assert minutes.cancelled_caught
    await dead.start()
    assert await ended(client)


@in_cluster
async def test_nothing_crosses_a_cut_until_it_ends(cluster: MemoryCluster, client: Client) -> None:
    leader = cluster.leader("t")
    cluster.network.cut(leader, CLIENT)
    await client.send(request(b"asked"), version=9)
    with trio.move_on_after(60) as minute:
        await client.receive()
    assert minute.cancelled_caught
    log = leader.broker.replicas.partitions["t", 0].log
    assert log.log_end_offset == 1, "the request has arrived: the cut is one way"
    cluster.network.mend()
    assert (await client.receive()).responses[0].partition_responses[0].base_offset == 0


@in_cluster
async def test_a_dropped_reply_ends_the_connection_after_the_request_is_served(
    cluster: MemoryCluster, client: Client
) -> None:
    cluster.network.drop_reply(CLIENT, ProduceRequest)
    await client.send(request(b"lost"), version=9)
    assert await ended(client)
    assert await produce(await cluster.connect(cluster.leader("t"))) == 1


@in_cluster
async def test_a_repeated_request_is_served_twice(cluster: MemoryCluster, client: Client) -> None:
    cluster.network.repeat(CLIENT, ProduceRequest, after_ms=DELAY_MS)
    assert await produce(client) == 0
    assert await produce(client) == 1
    await cluster.until(lambda: cluster.leader("t").broker.replicas.partitions["t", 0].log.log_end_offset == 3)
    assert trio.current_time() > DELAY_MS / 1000


@in_cluster
async def test_a_kept_request_is_served_again_at_any_time(cluster: MemoryCluster, client: Client) -> None:
    copies: list[Any] = []
    cluster.network.frame_faults.append(FrameFault("delay", 0, CLIENT, times=2, copies=copies))
    assert [await produce(client) for _ in range(3)] == [0, 1, 2]
    assert len(copies) == 2
    log = cluster.leader("t").broker.replicas.partitions["t", 0].log
    assert log.log_end_offset == 3, "nothing arrives by itself"
    cluster.network.serve_again(*copies[1])
    await cluster.until(lambda: log.log_end_offset == 4)


@in_cluster
async def test_a_delayed_request_delays_those_behind_it(cluster: MemoryCluster, client: Client) -> None:
    cluster.network.delay(CLIENT, ProduceRequest, ms=DELAY_MS)
    before = trio.current_time()
    await client.send(request(b"1"), version=9)
    await client.send(request(b"2"), version=9)
    offsets = [(await client.receive()).responses[0].partition_responses[0].base_offset for _ in range(2)]
    assert offsets == [0, 1]
    assert trio.current_time() - before > DELAY_MS / 1000


def test_a_slow_disk_takes_virtual_time() -> None:
    async def main() -> None:
        async with memory_cluster(1) as cluster:
            await cluster.create_topic("t", replicas=1, flush_messages=1)
            client = await cluster.connect(1)
            cluster.nodes[1].disk.slow(FSYNC_MS, "sync", "*.log")
            before = trio.current_time()
            await produce(client)
            assert trio.current_time() - before > FSYNC_MS / 1000

    run(main, seed=6)


@in_cluster
async def test_a_killed_node_does_not_serve_while_it_waits_for_its_disk(cluster: MemoryCluster, client: Client) -> None:
    leader = cluster.leader("t")
    leader.disk.slow(FSYNC_MS, "write")
    await client.send(request(b"x"), version=9)
    await trio.sleep(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.kill)
        await trio.sleep(0.1)
        assert leader.is_running, "the write has not ended, so this test shows nothing"
        assert not leader.is_serving


@in_cluster
async def test_a_failed_disk_ends_its_node_and_another_leads(cluster: MemoryCluster, client: Client) -> None:
    leader = cluster.leader("t")
    leader.disk.fail("write", "/data/t-0/*")
    await client.send(request(b"x"), version=9)
    await cluster.until(lambda: not leader.is_running)
    assert "has failed" in str(leader.failure)
    await cluster.until(lambda: cluster.partition("t").leader not in (-1, leader.id))
    leader.disk.heal()
    await leader.start()
    await cluster.wait_healthy()


@in_cluster
async def test_d8_a_broker_that_cannot_store_the_metadata_ends(cluster: MemoryCluster, client: Client) -> None:
    """It would go on as a leader that hears of no later leader."""
    leader = cluster.leader("t")
    leader.disk.fail("write", path="/data/__cluster_metadata-0/*.log")
    await cluster.create_topic("other", replicas=[[each.id for each in cluster.brokers if each is not leader]])
    await cluster.until(lambda: not leader.is_running)
    assert "/data has failed" in str(leader.failure)
    assert await ended(client)


@in_cluster
async def test_clocks_jump_alone_and_together(cluster: MemoryCluster, client: Client) -> None:
    before = [node.env.timestamp_ms() for node in cluster.brokers]
    cluster.clock.jump(3_600_000)
    cluster.clock.jump(-1_000, cluster.nodes[2])
    after = [node.env.timestamp_ms() for node in cluster.brokers]
    assert [now - then for now, then in zip(after, before, strict=True)] == [3_600_000, 3_599_000, 3_600_000]
    assert await produce(client) == 0


@in_cluster
async def test_a_clock_that_drifts_is_wrong_by_more_and_more(cluster: MemoryCluster, client: Client) -> None:
    drifting, right = cluster.nodes[1], cluster.nodes[2]
    drifting.drift(0.001)
    before = drifting.env.timestamp_ms() - right.env.timestamp_ms()
    await trio.sleep(100)
    after = drifting.env.timestamp_ms() - right.env.timestamp_ms()
    assert after - before == 100
    assert await produce(client) == 0


def test_objects_go_to_the_tier_and_its_faults_strike() -> None:
    async def main() -> None:
        async with memory_cluster(3, settings={"remote.log.manager.task.interval.ms": 1_000}) as cluster:
            await cluster.create_topic("t", replicas=3, remote_storage_enable="true", segment_bytes=1_000)
            client = await cluster.connect(cluster.leader("t"))
            cluster.store.fail("copy", times=-1)
            for _ in range(10):
                await produce(client, b"x" * 300)
            await trio.sleep(60)
            assert not cluster.store.objects()
            cluster.store.heal()
            await cluster.until(cluster.store.objects)

    run(main, seed=4)


def test_a_failure_of_the_cluster_fails_the_test() -> None:
    async def main() -> None:
        async with memory_cluster(1) as cluster:
            cluster.faults.append("a request met a fault")

    with pytest.raises(BaseException) as caught:
        run(main, seed=5)
    assert "met a fault" in repr(caught.value)


def test_a_cluster_frees_its_memory_at_its_end() -> None:
    async def main() -> list[ReferenceType[object]]:
        async with memory_cluster(1) as cluster:
            return [ref(each) for each in (cluster, cluster.store, cluster.nodes[1].disk)]

    left = run(main, seed=5)
    gc.collect()
    assert [each() for each in left] == [None, None, None]


@in_cluster
async def test_every_version_of_describe_quorum_names_the_observers(cluster: MemoryCluster, client: Client) -> None:
    asked = DescribeQuorumRequestTopicData(
        topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    for version in range(3):
        answer = await client.ask(DescribeQuorumRequest(topics=[asked]), version=version)
        observers = answer.topics[0].partitions[0].observers
        assert sorted(one.replica_id for one in observers) == [1, 2, 3]
        assert all(bool(one.replica_directory_id.int) == (version == 2) for one in observers)


def test_a_consumer_reads_the_tier_from_a_follower() -> None:
    async def main() -> None:
        often = dict.fromkeys(("remote.log.manager.task.interval.ms", "log.retention.check.interval.ms"), 1_000)
        async with memory_cluster(3, settings=often) as cluster:
            await cluster.create_topic(
                "t", replicas=[[1, 2, 3]], remote_storage_enable="true", segment_bytes=1_000, local_retention_bytes=1
            )
            client = await cluster.connect(1)
            for number in range(10):
                await produce(client, b"%d" % number * 300)
            follower = cluster.nodes[2].broker.replicas.partitions["t", 0]
            await cluster.until(lambda: follower.log.local_log_start_offset > 0)
            found = await (await cluster.connect(2)).ask(fetch_request(("t", 0), 0), version=12)
            part = found.responses[0].partitions[0]
            assert part.error_code == 0
            assert RecordBatch(part.records).base_offset == 0

    run(main, seed=7)
