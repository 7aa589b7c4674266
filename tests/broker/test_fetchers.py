"""How a follower copies: connections, offsets out of range, damaged records, throttles."""

from __future__ import annotations

import pytest
import trio

from kbroker.broker.fetchers import longest_response
from kbroker.testing.net import MemoryListener
from tests.broker.running_broker import settings_of
from tests.broker.several import memory_cluster, values
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from wire.record_batch import Record, build_batch


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


async def test_a_leader_that_reads_nothing_is_left_after_a_timeout() -> None:
    async with memory_cluster(2, settings={"replica.socket.timeout.ms": 5_000}) as cluster:
        await cluster.create(replicas=((1, 2),) * 2_000)  # a Fetch of all of them is larger than the socket's buffer
        silent = MemoryListener(cluster.network, "broker-1", 9092)
        silent.listen()
        cluster.network.listeners["broker-1", 9092] = silent
        cluster.cut(2, 1)
        cluster.mend(2)
        with trio.fail_after(30):
            for _ in range(3):
                await silent.accept()


def test_an_answer_may_have_all_records_that_were_asked_for_or_one_larger_batch() -> None:
    records, request = 200 << 20, 300 << 20
    given = {"replica.fetch.response.max.bytes": records, "socket.request.max.bytes": request}
    assert longest_response(settings_of(1, given)) > max(records, request)


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


async def test_tasks_that_keep_a_log_delay_its_truncations() -> None:
    """Such as the one that renames files of old segments in a thread, which a truncation would do as well."""
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b"], to=1)
        broker, follower = cluster.brokers[2].broker, cluster.brokers[2].partition()
        async with broker.kept(follower.log):
            follower.log.truncate_fully_and_start_at(10)
            await cluster.produce([b"c"], to=1, acks=1)
            await trio.sleep(5)
            assert follower.log.log_end_offset == 10, "it does not return to the leader's end"
        await cluster.until(lambda: follower.log.log_end_offset == 3)

        async with broker.kept(follower.log):
            follower.log.truncate_fully_and_start_at(0)
            await cluster.brokers[1].broker.delete_records("t", 0, 3)
            await cluster.produce([b"d"], to=1, acks=1)
            await trio.sleep(5)
            assert follower.log.log_end_offset == 0, "it does not start at the leader's start"
        await cluster.until(lambda: (follower.log.log_start_offset, follower.log.log_end_offset) == (3, 4))


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


async def test_a_log_that_grows_before_it_starts_inside_a_batch_is_kept() -> None:
    """An append of a former leader may finish while the follower waits for the lock."""
    async with memory_cluster() as cluster:
        await cluster.create()
        await cluster.produce([b"a", b"b", b"c"], to=1)
        await cluster.brokers[1].broker.delete_records("t", 0, 2)
        cluster.cut(2, 1)
        broker, follower = cluster.brokers[2].broker, cluster.brokers[2].partition()
        async with broker.appender.locks.holding(follower.key):
            follower.log.truncate_fully_and_start_at(2)
            cluster.mend(2)
            await trio.sleep(5)  # the follower waits for the lock with the leader's batch
            follower.log.append(build_batch([Record(timestamp=1, value=b"kept")]), leader_epoch=0, timestamp_ms=1)
        await trio.sleep(5)
        assert follower.log.log_start_offset == 2
        assert values(cluster.bytes_of(2)) == [b"kept"]


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


async def test_a_batch_of_an_unknown_leader_epoch_is_not_stored_and_not_asked_for_in_a_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
        assert "the leader's records of a partition cannot be used" in caplog.text
        assert "the leader refuses" not in caplog.text


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
