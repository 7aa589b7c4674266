"""Transactions over several brokers: coordinators and leaders that die between a decision and its markers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from kbroker.broker.marker_sender import MarkerSender
from kbroker.coordinator.common.ports import partition_for
from kbroker.coordinator.transactions.markers import Ending
from kbroker.coordinator.transactions.state import Transaction, TransactionState
from kbroker.metadata.names import TRANSACTION_STATE_TOPIC
from kbroker.testing.cluster import MemoryCluster, MemoryNode, memory_cluster
from tests.handlers.transactions import add_partitions, described, end, init_answer
from wire.errors import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdResponse

SETTINGS = {
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
}
NAME = "x"
PARTITIONS = [("t", index) for index in range(6)]


def coordinator(cluster: MemoryCluster) -> MemoryNode | None:
    """The broker that coordinates the transactional id, when it has loaded it."""
    topic = cluster.image.topics_by_name[TRANSACTION_STATE_TOPIC]
    index = partition_for(NAME, len(topic.partitions))
    leader = cluster.nodes.get(topic.partitions[index].leader)
    if leader is None or not leader.is_serving:
        return None
    led = leader.broker.transactions.led.get(index)
    return leader if led is not None and led.state.value == "active" else None


async def state(cluster: MemoryCluster) -> str:
    """The state of the transactional id, as its coordinator describes it."""
    node = await cluster.until(lambda: coordinator(cluster))
    client = await cluster.connect(node)
    try:
        return (await described(client, NAME)).transaction_state
    finally:
        client.close()


async def eventually(
    expected: object, ask: Callable[[], Awaitable[Any]], read: Callable[[Any], object] = lambda found: found
) -> None:
    """Ask until the answer is the expected one, for up to a virtual minute."""
    for _ in range(600):
        if read(await ask()) == expected:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"the answer never becomes {expected}")


async def begin(cluster: MemoryCluster, *, at_coordinator: bool = False) -> InitProducerIdResponse:
    """A producer with a transaction over all partitions, which the coordinator or all brokers lead."""
    find = FindCoordinatorRequest(coordinator_keys=[NAME], key_type=1)
    await eventually(0, lambda: cluster.ask(1, find), lambda answer: answer.coordinators[0].error_code)
    node = await cluster.until(lambda: coordinator(cluster))
    replicas = [[node.id]] * len(PARTITIONS) if at_coordinator else 1
    await cluster.create_topic("t", partitions=len(PARTITIONS), replicas=replicas)
    client = await cluster.connect(node)
    producer = await init_answer(client, NAME)
    codes = await add_partitions(client, NAME, producer.producer_id, producer.producer_epoch, *PARTITIONS)
    assert set(codes.values()) == {0}
    client.close()
    return producer


async def commit(cluster: MemoryCluster, producer: InitProducerIdResponse, *, version: int = 4) -> None:
    """EndTxn, repeated until it is answered."""
    for _ in range(200):
        node = await cluster.until(lambda: coordinator(cluster))
        client = await cluster.connect(node)
        answer = await end(client, NAME, producer.producer_id, producer.producer_epoch, version=version)
        client.close()
        if answer.error_code == 0:
            return
        assert answer.error_code in (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        )
        await trio.sleep(0.1)
    raise AssertionError("EndTxn is never answered")


def markers(cluster: MemoryCluster) -> list[int]:
    """The log end offset of each partition: a transaction without data has one record, its marker."""
    found = []
    for topic, index in PARTITIONS:
        held = cluster.leader(topic, index).replica(topic, index)
        found.append(-1 if held is None else held.log.log_end_offset)
    return found


async def test_markers_go_to_the_leaders_on_all_brokers() -> None:
    async with memory_cluster(settings=SETTINGS, has_tier=False) as cluster:
        producer = await begin(cluster)
        await commit(cluster, producer)
        await cluster.until(lambda: markers(cluster) == [1] * 6)
        await eventually("CompleteCommit", lambda: state(cluster))


@pytest.mark.parametrize("dies", ["leader", "leader, then coordinator", "coordinator"])
async def test_r11_a_decided_transaction_ends_although_brokers_die(dies: str) -> None:
    async with memory_cluster(settings=SETTINGS, has_tier=False) as cluster:
        producer = await begin(cluster)
        first = await cluster.until(lambda: coordinator(cluster))
        others = [node for node in cluster.brokers if node is not first]
        if "leader" in dies:
            await others[0].kill()
            await commit(cluster, producer)
            await trio.sleep(5)
            assert await state(cluster) == "PrepareCommit"
        if "coordinator" in dies:
            if dies == "coordinator":
                await commit(cluster, producer)
            await first.kill()
            if dies == "coordinator":
                await cluster.until(lambda: coordinator(cluster) in others)
            await first.start()
        await others[0].start()
        await eventually("CompleteCommit", lambda: state(cluster))
        assert set(markers(cluster)) <= {1, 2}, "a marker may be written again, but not be left out"


async def test_r11_no_marker_is_written_before_the_decision_is_committed() -> None:
    """A coordinator that is cut off could have decided otherwise than its successor."""
    async with memory_cluster(settings=SETTINGS, has_tier=False) as cluster:
        producer = await begin(cluster, at_coordinator=True)
        node = await cluster.until(lambda: coordinator(cluster))
        for other in cluster.brokers:
            if other is not node:
                await other.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, cluster, producer)
            await trio.sleep(1)
            assert await state(cluster) == "PrepareCommit"
            assert markers(cluster) == [0] * 6, "the followers are in the ISR, and lack the decision"
            await cluster.until(lambda: markers(cluster) == [1] * 6)
        await eventually("CompleteCommit", lambda: state(cluster))


async def test_a_decision_at_the_end_of_a_broker_fails_nothing() -> None:
    """The coordinator may load a prepared transaction after the sender of its markers has ended (small seed 221)."""
    async with memory_cluster(1) as cluster:
        await cluster.create_topic("t", replicas=((1,),))
        sender = MarkerSender(cluster.brokers[0].broker)
        async with trio.open_nursery() as nursery:
            await nursery.start(sender.run)
            nursery.cancel_scope.cancel()
        prepared = Transaction(NAME, 7, 0, state=TransactionState.PREPARE_COMMIT, partitions={("t", 0): None})
        sender.submit([Ending(prepared)])
        assert list(sender.markers.by_broker) == [1]
