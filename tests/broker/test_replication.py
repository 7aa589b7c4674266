"""Brokers that replicate from each other: what is acknowledged survives, and replicas become equal."""

from __future__ import annotations

from random import Random

import pytest
import trio

from kbroker.client.streaming import ConnectionClosed
from tests.broker.several import MemoryCluster, memory_cluster
from wire.errors import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from wire.record_batch import Record, RecordBatch, build_batch

SHORT_LAG = {"replica.lag.time.max.ms": 10_000}


def values(data: bytes) -> list[bytes]:
    """The records of a log."""
    found, position = [], 0
    while position < len(data):
        batch = RecordBatch(data, position)
        found += [record.value or b"" for record in batch.records()]
        position += batch.size
    return found


async def test_followers_copy_what_a_leader_appends() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(min_insync_replicas=2)
        answer = await cluster.produce([b"a", b"b"], to=cluster.leader())
        assert answer.error_code == ErrorCode.NONE
        assert cluster.isr() == {1, 2, 3}
        await cluster.agree()
        await cluster.until(lambda: all(one.partition().known_high_watermark == 2 for one in cluster.brokers.values()))


async def test_a_new_partition_does_not_wait_for_the_end_of_an_idle_fetch() -> None:
    async with memory_cluster(settings={"replica.fetch.wait.max.ms": 20_000}) as cluster:
        await cluster.create("first")
        await cluster.produce([b"a"], to=1, topic="first")
        await trio.sleep(5)  # every follower now waits in a Fetch
        await cluster.create()
        began = trio.current_time()
        assert not (await cluster.produce([b"a"], to=1)).error_code
        assert trio.current_time() - began < 1
        assert len(cluster.brokers[1].broker.fetch_sessions) == 2, "one for each follower"


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


async def test_committed_offsets_survive_the_death_of_their_coordinator() -> None:
    """The coordinator of a group moves with the leader of its partition of `__consumer_offsets`."""
    settings = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 3}
    async with memory_cluster(settings=settings) as cluster:
        await cluster.create()
        await cluster.create("__consumer_offsets", replicas=((1, 2, 3),), min_insync_replicas=2)
        commit = OffsetCommitRequest(
            group_id="readers",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
                    ],
                )
            ],
            member_id="",
        )
        fetch = OffsetFetchRequest(
            group_id="readers", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        )

        async def committed(broker: int) -> tuple[int, int]:
            async with cluster.client(broker) as client:
                answer = await client.ask(fetch, version=7)
            if answer.error_code:
                return answer.error_code, -1
            return 0, answer.topics[0].partitions[0].committed_offset

        async with cluster.client(1) as client:
            answer = await client.ask(commit, version=7)
        assert not answer.topics[0].partitions[0].error_code
        assert await committed(2) == (ErrorCode.NOT_COORDINATOR, -1)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader("__consumer_offsets") == 2)
        await trio.sleep(5)  # until the coordinator has loaded its partition
        assert await committed(2) == (0, 7)
        await cluster.start(1)
        assert (await committed(1))[0] == ErrorCode.NOT_COORDINATOR


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


async def test_a_follower_that_is_removed_copies_no_more() -> None:
    """The leader and its epoch stay the same, and the leader would answer the old follower with errors at once."""
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a"], to=1)
        assert cluster.brokers[3].broker.fetchers.sources
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1, 2])])
            ],
            timeout_ms=1_000,
        )
        await cluster.controller.ask(request, AlterPartitionReassignmentsResponse, version=0)
        await cluster.until(lambda: ("t", 0) not in cluster.brokers[3].broker.replicas.partitions)
        await trio.sleep(1)
        assert not cluster.brokers[3].broker.fetchers.sources
        assert not (await cluster.produce([b"b"], to=1)).error_code


async def test_a_follower_that_lost_its_directory_copies_everything_again() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        for number in range(20):
            await cluster.produce([b"%d" % number], to=1)
        await cluster.kill(2)
        del cluster.disks[2]
        await cluster.start(2)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        await cluster.agree()
        assert values(cluster.bytes_of(2)) == [b"%d" % number for number in range(20)]


async def test_a_follower_behind_the_log_start_starts_there() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a"], to=1)
        await cluster.kill(2)
        for value in (b"b", b"c", b"d"):
            await cluster.produce([value], to=1)
        log = cluster.brokers[1].partition().log
        assert log.roll(timestamp_ms=1)
        await cluster.brokers[1].broker.delete_records("t", 0, 4)
        await cluster.produce([b"e"], to=1)
        await cluster.start(2)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        follower = cluster.brokers[2].partition().log
        assert (follower.log_start_offset, follower.log_end_offset) == (4, 5)
        assert values(cluster.bytes_of(2)) == [b"e"]


async def test_r13_a_follower_beyond_the_leaders_end_returns_to_it() -> None:
    """Without leader epochs in common there is no diverging epoch to find: an unclean election lost the records."""
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b", b"c"], to=1)
        follower = cluster.brokers[2].partition()
        follower.log.truncate_fully_and_start_at(10)
        assert not (await cluster.produce([b"d"], to=1)).error_code
        assert follower.log.log_end_offset == 4
        assert not (await cluster.produce([b"e"], to=1)).error_code
        assert values(cluster.bytes_of(2)) == [b"e"]


async def test_a_damaged_batch_of_a_leader_delays_only_its_partition() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(replicas=((1, 2, 3),))
        await cluster.create("other")
        cluster.cut(2, 1)
        await cluster.produce([b"damaged"], to=1, acks=1)
        segment = cluster.brokers[1].partition().log.segments.active
        last = segment.open().file.pread(1, segment.size - 2)
        segment.open().file.pwrite(bytes([last[0] ^ 1]), segment.size - 2)
        cluster.mend(2)
        assert not (await cluster.produce([b"x"], to=1, topic="other")).error_code
        await trio.sleep(5)
        assert cluster.brokers[2].partition().log.log_end_offset == 0, "nothing damaged is stored"
        segment.open().file.pwrite(last, segment.size - 2)
        await cluster.agree()


async def test_a_batch_of_an_unknown_leader_epoch_is_not_stored_and_not_asked_for_in_a_loop() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        cluster.cut(2, 1)
        leader = cluster.brokers[1].partition()
        leader.log.append(build_batch([Record(timestamp=1, value=b"x")]), leader_epoch=7, timestamp_ms=1)
        leader.on_append()
        before = cluster.brokers[2].broker.fetchers.bytes_in
        cluster.mend(2)
        await trio.sleep(20)
        assert cluster.brokers[2].partition().log.log_end_offset == 0
        assert 0 < cluster.brokers[2].broker.fetchers.bytes_in - before < 40 * 69


async def test_several_connections_copy_from_one_source() -> None:
    async with memory_cluster(settings={"num.replica.fetchers": 2}) as cluster:
        await cluster.create(replicas=((1, 2, 3), (1, 3, 2), (1, 2, 3)))
        assert not (await cluster.produce([b"x"], to=1)).error_code
        assert set(cluster.brokers[2].broker.fetchers.sources) == {(1, 0), (1, 1)}
        await cluster.kill(1)
        await cluster.until(lambda: {key[0] for key in cluster.brokers[2].broker.fetchers.sources} == {3})


async def test_changed_num_replica_fetchers_applies_to_partitions_that_are_copied() -> None:
    async with memory_cluster() as cluster:
        await cluster.create(replicas=((1, 2, 3), (1, 3, 2)))
        await cluster.produce([b"x"], to=1)
        sources = cluster.brokers[2].broker.fetchers.sources
        assert set(sources) == {(1, 0)}
        for number, keys in (("2", {(1, 0), (1, 1)}), ("1", {(1, 0)})):
            await cluster.configure("num.replica.fetchers", number)
            await cluster.until(lambda keys=keys: set(sources) == keys)
            assert not (await cluster.produce([b"y"], to=1)).error_code
        await cluster.agree()
        await cluster.agree(index=1)


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


async def test_consumers_read_from_the_follower_in_their_rack() -> None:
    settings = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    async with memory_cluster(0, settings=settings) as cluster:
        for one, rack in ((1, "a"), (2, "b"), (3, "c")):
            await cluster.start(one, rack=rack)
        topic_id = await cluster.create()
        await cluster.produce([b"x"], to=1)
        await cluster.until(lambda: all(one.partition().known_high_watermark == 1 for one in cluster.brokers.values()))

        async def fetch(broker: int, rack: str, offset: int = 0) -> PartitionData:
            asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
            request = FetchRequest(
                max_wait_ms=1_000,
                min_bytes=1,
                topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
                rack_id=rack,
            )
            async with cluster.client(broker) as client:
                found: PartitionData = (await client.ask(request, version=16)).responses[0].partitions[0]
                return found

        for rack, preferred, size in (("b", 2, 0), ("a", -1, 69), ("z", -1, 69), ("", -1, 69)):
            data = await fetch(1, rack)
            assert (data.preferred_read_replica, len(data.records or b"")) == (preferred, size), rack
        data = await fetch(2, "b")
        assert (data.error_code, data.high_watermark, len(data.records or b"")) == (0, 1, 69)
        assert (await fetch(2, "b", 5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_starts_inside_a_batch_with_its_leader() -> None:
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b", b"c"], to=1)
        await cluster.kill(2)
        del cluster.disks[2]
        await cluster.brokers[1].broker.delete_records("t", 0, 2)
        await cluster.start(2)
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        follower = cluster.brokers[2].partition().log
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 3)
        await cluster.agree()


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


@pytest.mark.parametrize("side", ["leader", "follower"])
async def test_a_throttled_follower_catches_up_at_the_rate(side: str) -> None:
    async with memory_cluster() as cluster:
        await cluster.create(**{f"{side}_replication_throttled_replicas": "0:1" if side == "leader" else "0:2"})
        await cluster.kill(2)
        for _ in range(30):
            await cluster.produce([b"x" * 100_000], to=1)
        await cluster.configure(f"{side}.replication.throttled.rate", "100000", broker="1" if side == "leader" else "2")
        began = trio.current_time()
        await cluster.start(2)
        assert not (await cluster.produce([b"y"], to=1)).error_code
        assert trio.current_time() - began < 1, "the members of the ISR are not throttled"
        await cluster.until(lambda: cluster.isr() == {1, 2, 3})
        assert 10 < trio.current_time() - began < 60, "3 MB, of which a burst of 1 MB is free"


async def test_a_throttled_answer_counts_once_even_if_it_is_read_twice() -> None:
    async with memory_cluster(2) as cluster:
        topic_id = await cluster.create(replicas=((1, 2),), leader_replication_throttled_replicas="0:1")
        await cluster.configure("leader.replication.throttled.rate", "1000", broker="1")
        await cluster.produce([b"x" * 10_000], to=1)
        await trio.sleep(60)  # the traffic of the follower is forgotten
        asked = FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=20_000,
            topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
            replica_state=ReplicaState(replica_id=2, replica_epoch=cluster.image.brokers[2].epoch),
        )
        broker = cluster.brokers[1].broker
        sent = broker.fetchers.bytes_out
        async with cluster.client(1) as client:
            await client.ask(request, version=17)
        assert 10_000 < broker.fetchers.bytes_out - sent < 10_100
        wait_ms = broker.leaders_throttle.wait_ms(broker.env.now_ms())
        assert 0 <= wait_ms < 100, "the answer is as large as the burst of ten seconds"


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
