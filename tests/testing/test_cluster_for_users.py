"""What a test of a client uses of a simulated cluster: records, groups, streams, health, and errors as themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from kbroker.testing import Loss, MemoryCluster, deterministic, memory_cluster, run
from kbroker.testing.cluster import CLIENT
from wire.client import ClientProtocol
from wire.errors import ErrorCode, KafkaError
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.fetch import FetchRequest
from wire.messages.metadata import MetadataRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.produce import ProduceRequest
from wire.record_batch import Record

APP = "app"


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster(brokers=3) as found:
        await found.create_topic("orders", min_insync_replicas=2)
        yield found


async def test_produced_records_are_read_across_leaders(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    assert await cluster.produce("orders", b"a", b"b") == [0, 1]
    await cluster.leader("orders").kill()
    assert await cluster.produce("orders", Record(key=b"k", value=b"c", timestamp=5)) == [2]
    found = await cluster.records("orders")
    assert [record.value for record in found] == [b"a", b"b", b"c"]
    assert found[0].timestamp == pytest.approx(cluster.clock.timestamp_ms(), abs=60_000)
    assert found[2] == Record(2, 5, b"k", b"c")
    assert [record.offset for record in await cluster.records("orders", start=1)] == [1, 2]
    assert await cluster.records("orders", start=3) == []


async def test_records_before_the_log_start_are_an_error(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    with pytest.raises(KafkaError) as caught:
        await cluster.records("orders", start=1)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_leader_without_power_is_replaced(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    leader = cluster.leader("orders")
    await leader.kill(loss=Loss.ONLY_SYNCED)
    assert await cluster.produce("orders", b"a") == [0]
    assert cluster.leader("orders") is not leader


async def test_a_lost_reply_does_not_repeat_records(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    cluster.network.drop_reply(CLIENT, ProduceRequest, times=2)
    assert await cluster.produce("orders", b"a", b"b") == [0, 1]
    assert [record.value for record in await cluster.records("orders")] == [b"a", b"b"]


@pytest.mark.long
async def test_a_full_disk_refuses_records(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    for node in cluster.brokers:
        node.disk.fill()
    with pytest.raises(KafkaError) as caught:
        await cluster.produce("orders", b"a" * 10_000)  # more than what a broker keeps in reserve for its metadata
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.heal()
    assert await cluster.produce("orders", b"a" * 10_000) == [0]


async def test_committed_offsets_outlive_their_coordinator(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    assert await cluster.consumer_offset("readers", "orders") is None
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="readers", member_id="", topics=[OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    )
    answer = await cluster.ask(cluster.coordinator("readers"), request, version=8)
    assert answer.topics[0].partitions[0].error_code == 0
    await cluster.coordinator("readers").kill()
    assert await cluster.consumer_offset("readers", "orders") == 7


async def test_health_names_what_is_missing(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    dead = cluster.leader("orders")
    await dead.kill()
    with pytest.raises(AssertionError, match=f"{dead.host} does not serve; .*orders-0 has the ISR"):
        await cluster.wait_healthy(within_ms=20_000)
    await dead.start()
    await cluster.wait_healthy()
    assert cluster.problems() == []


async def test_a_client_with_trio_streams_works(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    host, port = cluster.bootstrap_servers.split(",")[1].split(":")
    stream = await cluster.network.host(APP).open_tcp_stream(host, int(port))
    protocol = ClientProtocol(client_id=APP)
    async with stream:
        await stream.send_all(b"".join(bytes(part) for part in protocol.request(ApiVersionsRequest(), version=0)))  # type: ignore[call-overload]
        while (answer := protocol.next_response()) is None:
            protocol.feed(await stream.receive_some())
        assert answer.error_code == 0
        await cluster.nodes[2].kill()
        assert await stream.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
    with pytest.raises(ConnectionRefusedError):
        await cluster.network.host(APP).open_tcp_stream(host, int(port))


async def test_an_isolated_client_reaches_the_brokers_after_the_mend(
    cluster: MemoryCluster, autojump_clock: MockClock
) -> None:
    client = await cluster.connect(1)
    cluster.network.isolate(CLIENT, *cluster.brokers)
    with trio.move_on_after(60) as minute:
        await client.ask(MetadataRequest(topics=None), version=12)
    assert minute.cancelled_caught
    cluster.network.mend(CLIENT, both_ways=True)
    assert (await client.receive()).topics[0].name == "orders"


async def test_a_fault_of_requests_skips_and_counts(cluster: MemoryCluster, autojump_clock: MockClock) -> None:
    await cluster.produce("orders", b"a")
    cluster.network.delay(CLIENT, FetchRequest, ms=10_000, skip=1, times=2)
    slow = []
    for _ in range(4):
        before = trio.current_time()
        assert len(await cluster.records("orders", start=0)) == 1
        slow.append(trio.current_time() - before > 10)
    assert slow == [False, True, True, False]


async def test_an_error_of_the_test_is_raised_as_itself(autojump_clock: MockClock) -> None:
    async def fails() -> None:
        async with memory_cluster(brokers=1) as cluster:
            cluster.faults.append("a request met a fault")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await fails()
    fault, log = caught.value.__notes__
    assert fault == "a request met a fault"
    assert "node 1 INFO" in log


async def test_a_cluster_in_real_time_is_refused() -> None:
    with pytest.raises(RuntimeError, match="autojump_clock"):
        await memory_cluster(brokers=1).__aenter__()


async def test_a_time_limit_around_a_cluster_ends_it(autojump_clock: MockClock) -> None:
    with trio.move_on_after(30) as limit:
        async with memory_cluster(brokers=1):
            await trio.sleep_forever()
    assert limit.cancelled_caught


def test_a_group_works_with_one_broker() -> None:
    async def main() -> int | None:
        async with memory_cluster(brokers=1) as cluster:
            await cluster.create_topic("orders")
            return await cluster.consumer_offset("readers", "orders")

    assert run(main, seed=1) is None


def test_runs_with_the_clock_of_a_seed_are_equal() -> None:
    async def main() -> list[str]:
        async with memory_cluster(brokers=3, seed=1) as cluster:
            await cluster.create_topic("orders")
            await cluster.leader("orders").kill()
            await cluster.produce("orders", b"a")
            return [str(line) for line in cluster.events.lines]

    runs = []
    for _ in range(2):
        with deterministic(9) as clock:
            runs.append(trio.run(main, clock=clock))
    assert runs[0] == runs[1] == run(main, seed=9)
