"""Brokers that replicate from each other: acknowledgements, in-sync replicas, reassignments."""

from __future__ import annotations

import pytest
import trio

from kbroker.replication.offset_lookup import DEBUGGING
from kbroker.replication.partition_reads import CONSUMER
from tests.broker.several import memory_cluster, values
from wire.errors import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState

SHORT_LAG = {"replica.lag.time.max.ms": 10_000}


async def test_followers_copy_what_a_leader_appends() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(min_insync_replicas=2)
        answer = await cluster.produce([b"a", b"b"], to=cluster.leader())
        assert answer.error_code == ErrorCode.NONE
        assert cluster.isr() == {1, 2, 3}
        await cluster.agree()
        await cluster.until(lambda: all(one.partition().known_high_watermark == 2 for one in cluster.brokers.values()))


@pytest.mark.parametrize("version", range(13, 19))
async def test_followers_of_any_release_fetch_without_asking_for_versions(version: int) -> None:
    """The metadata.version of the cluster pins the version; a follower's connection has no ApiVersions."""
    async with memory_cluster() as cluster:
        topic_id = await cluster.create()
        await cluster.produce([b"x"], to=1)
        asked = FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=0, partition_max_bytes=1000)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[asked])])
        if version < 15:
            request.replica_id = 2
        else:
            request.replica_state = ReplicaState(replica_id=2, replica_epoch=cluster.image.brokers[2].epoch)
        async with cluster.client(1) as client:
            found = (await client.ask(request, version=version)).responses[0].partitions[0]
        assert (found.error_code, len(found.records)) == (0, 69)


async def test_r2_a_fetch_of_an_earlier_incarnation_does_not_count() -> None:
    async with memory_cluster() as cluster:
        topic_id = await cluster.create()
        for follower in (2, 3):
            cluster.cut(follower, 1)
        await cluster.produce([b"x"], to=1, acks=1)
        asked = FetchPartition(partition=0, fetch_offset=1, current_leader_epoch=0, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
            replica_state=ReplicaState(replica_id=2, replica_epoch=cluster.image.brokers[2].epoch - 1),
        )
        leader = cluster.brokers[1].partition().leading()
        async with cluster.client(1) as client:
            stale = (await client.ask(request, version=17)).responses[0].partitions[0]
            assert stale.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert leader.followers[2].fetch_offset < 1
            request.replica_state = ReplicaState(replica_id=2, replica_epoch=cluster.image.brokers[2].epoch)
            assert not (await client.ask(request, version=17)).responses[0].partitions[0].error_code
            assert leader.followers[2].fetch_offset == 1


async def test_acks_all_waits_for_every_member_of_the_isr() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a"], to=1)
        cluster.cut(2, 1)
        late = await cluster.produce([b"b"], to=1, timeout_ms=5_000)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        cluster.mend(2)
        assert not (await cluster.produce([b"c"], to=1)).error_code
        await cluster.agree()


async def test_pipelined_requests_of_one_connection_wait_for_the_replicas_together() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        cluster.cut(2, 1)
        async with cluster.client(1) as client:
            for value in (b"a", b"b", b"c"):
                await client.send(cluster.produce_request([value], timeout_ms=20_000), version=9)
            await cluster.until(lambda: cluster.brokers[1].partition().log.log_end_offset == 3)
            assert cluster.brokers[1].partition().known_high_watermark == 0
            cluster.mend(2)
            answers = [(await client.receive()).responses[0].partition_responses[0] for _ in range(3)]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 2)]


async def test_each_pipelined_request_has_its_own_timeout() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        cluster.cut(2, 1)
        began, timed_out = trio.current_time(), []
        async with cluster.client(1) as client:
            for timeout_ms in (2_000, 1_000, 5_000):
                await client.send(cluster.produce_request([b"x"], timeout_ms=timeout_ms), version=9)
            for _ in range(3):
                answer = (await client.receive()).responses[0].partition_responses[0]
                assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
                timed_out.append(round(trio.current_time() - began, 1))
        assert timed_out == [2.0, 2.0, 5.0], "replies keep the order of their requests"


async def test_r3_a_lagging_follower_leaves_the_isr_and_returns() -> None:
    async with memory_cluster(settings=SHORT_LAG) as cluster:
        await cluster.create(min_insync_replicas=2)
        await cluster.produce([b"a"], to=1)
        cluster.cut(2, 1)
        began = trio.current_time()
        assert not (await cluster.produce([b"b"], to=1)).error_code, "acknowledged when the ISR has shrunk"
        assert 9 <= trio.current_time() - began <= 16
        assert cluster.isr() == {1, 3}
        cluster.mend(2)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()


async def test_r3_below_min_isr_nothing_is_acknowledged() -> None:
    async with memory_cluster(settings=SHORT_LAG) as cluster:
        await cluster.create(min_insync_replicas=2)
        await cluster.produce([b"a"], to=1)
        cluster.cut(2, 1)
        cluster.cut(3, 1)
        held = await cluster.produce([b"b"], to=1, timeout_ms=30_000)
        assert held.error_code == ErrorCode.REQUEST_TIMED_OUT, "the high watermark does not advance below min ISR"
        assert cluster.isr() == {1}
        refused = await cluster.produce([b"c"], to=1)
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert not (await cluster.produce([b"d"], to=1, acks=1)).error_code
        assert cluster.brokers[1].partition().known_high_watermark == 1
        cluster.mend(2)
        await cluster.until(lambda: cluster.brokers[1].partition().known_high_watermark == 3)
        assert cluster.isr() == {1, 2}


async def test_a_partition_moves_to_other_brokers_while_it_is_written() -> None:
    """Also the leader moves: the last change of the ISR completes the reassignment."""
    async with memory_cluster() as cluster:
        await cluster.create(replicas=((1, 2),), min_insync_replicas=2)
        for number in range(10):
            await cluster.produce([b"%d" % number], to=1)
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[3, 2])])
            ],
            timeout_ms=1_000,
        )
        answer = await cluster.controller.ask(request, AlterPartitionReassignmentsResponse, version=0)
        assert not answer.error_code
        sent = 10
        while cluster.isr() != {2, 3} or cluster.leader() == 1:
            await trio.sleep(0.01)
            response = await cluster.produce([b"%d" % sent], to=cluster.leader())
            if response.error_code:
                assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                sent += 1
        await cluster.until(lambda: ("t", 0) not in cluster.brokers[1].broker.replicas.partitions)
        await cluster.agree()
        assert values(cluster.bytes_of(3)) == [b"%d" % number for number in range(sent)]


async def test_followers_take_the_log_start_of_their_leader() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b", b"c"], to=1)
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)]),
            ],
            timeout_ms=5_000,
        )
        cluster.cut(3, 1)
        async with cluster.client(1) as client:
            answer = (await client.ask(request)).topics[0].partitions[0]
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
            cluster.mend(3)
            answer = (await client.ask(request)).topics[0].partitions[0]
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 2)
        assert {one.partition().log.log_start_offset for one in cluster.brokers.values()} == {2}


async def test_k1_a_killed_follower_does_not_forget_a_confirmed_deletion() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b", b"c"], to=1)
        topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
        async with cluster.client(1) as client:
            answer = await client.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=5_000))
        assert answer.topics[0].partitions[0].low_watermark == 2
        for broker in (1, 2):  # the leader first, so that the follower cannot ask it again
            await cluster.kill(broker)
        await cluster.start(2)
        await cluster.until(lambda: ("t", 0) in cluster.brokers[2].broker.replicas.partitions)
        assert cluster.brokers[2].partition().log.log_start_offset == 2


async def test_consumers_read_from_the_follower_in_their_rack() -> None:
    settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    async with memory_cluster(0, settings=settings) as cluster:
        for one, rack in ((1, "a"), (2, "b"), (3, "c")):
            await cluster.start(one, rack=rack)
        topic_id = await cluster.create()
        await cluster.produce([b"x"], to=1)
        await cluster.until(lambda: all(one.partition().known_high_watermark == 1 for one in cluster.brokers.values()))

        async def fetch(broker: int, rack: str, offset: int = 0, *, replica_id: int = CONSUMER) -> PartitionData:
            asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
            request = FetchRequest(
                max_wait_ms=1_000,
                min_bytes=1,
                topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
                rack_id=rack,
                replica_state=ReplicaState(replica_id=replica_id),
            )
            async with cluster.client(broker) as client:
                found: PartitionData = (await client.ask(request, version=16)).responses[0].partitions[0]
                return found

        for rack, preferred, size in (("b", 2, 0), ("a", -1, 69), ("z", -1, 69), ("", -1, 69)):
            data = await fetch(1, rack)
            assert (data.preferred_read_replica, len(data.records or b"")) == (preferred, size), rack
        data = await fetch(2, "b")
        assert (data.error_code, data.high_watermark, len(data.records or b"")) == (0, 1, 69)
        assert await fetch(2, "", replica_id=DEBUGGING) == data, "kafka-replica-verification reads every replica"
        assert (await fetch(2, "b", 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
