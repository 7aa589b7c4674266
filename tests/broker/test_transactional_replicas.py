"""Transactional records on several brokers: verification by peers, followers, and new leaders."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from kbroker.broker.transaction_verification import verify
from kbroker.client.streaming import ConnectionClosed
from kbroker.testing.cluster import MemoryCluster, MemoryNode, memory_cluster
from tests.broker.test_transactions import NAME, SETTINGS, commit, coordinator, eventually
from tests.handlers.asking import batch, fetching, parts, producing, wanted
from tests.handlers.transactions import add_partitions, init_answer
from wire.errors import ErrorCode
from wire.messages.fetch import PartitionData
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.produce import PartitionProduceResponse
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

CLASSIC, ADDING = 11, 12


async def producer_of(cluster: MemoryCluster, *, partitions: int = 3) -> InitProducerIdResponse:
    """A new producer; topic t has its partitions on all brokers."""
    await cluster.create_topic("t", partitions=partitions, replicas=3)
    find = FindCoordinatorRequest(coordinator_keys=[NAME], key_type=1)
    await eventually(0, lambda: cluster.ask(1, find), lambda answer: answer.coordinators[0].error_code)
    client = await cluster.connect(await cluster.until(lambda: coordinator(cluster)))
    producer = await init_answer(client, NAME)
    client.close()
    return producer


async def add(cluster: MemoryCluster, producer: InitProducerIdResponse, partitions: int) -> None:
    """Add partitions to the transaction as a client of the classic protocol."""
    client = await cluster.connect(await cluster.until(lambda: coordinator(cluster)))
    added = [("t", partition) for partition in range(partitions)]
    codes = await add_partitions(client, NAME, producer.producer_id, producer.producer_epoch, *added)
    assert set(codes.values()) == {0}
    client.close()


async def write(
    cluster: MemoryCluster, producer: InitProducerIdResponse, sequence: int, *, partition: int = 0, version: int
) -> PartitionProduceResponse:
    """Produce one transactional record to the leader of a partition."""
    sent = batch(
        b"%d" % sequence, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        base_sequence=sequence, is_transactional=True,
    )  # fmt: skip
    request = producing(("t", partition, sent), transactional_id=NAME, timeout_ms=60_000)
    answer = await cluster.ask(cluster.leader("t", partition), request, version=version)
    found = answer.responses[0].partition_responses[0]
    assert isinstance(found, PartitionProduceResponse)
    return found


async def committed(cluster: MemoryCluster, node: MemoryNode) -> PartitionData:
    """What a broker, perhaps a follower, returns to a consumer of committed records."""
    answer = await cluster.ask(node, fetching("t", wanted(), read_committed=True), version=12)
    return parts(answer)[0]


@pytest.mark.parametrize("version", [CLASSIC, ADDING])
async def test_leaders_ask_the_coordinator_on_another_broker(version: int) -> None:
    async with memory_cluster(settings=SETTINGS, has_tier=False) as cluster:
        producer = await producer_of(cluster)
        for partition in range(3):
            answer = await write(cluster, producer, 0, partition=partition, version=CLASSIC)
            assert answer.error_code == ErrorCode.TRANSACTION_ABORTABLE
        if version == CLASSIC:
            await add(cluster, producer, 3)
        else:
            update = FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
            answer = await cluster.ask(1, UpdateFeaturesRequest(timeout_ms=60_000, feature_updates=[update]), version=1)
            assert answer.error_code == 0
            await cluster.until(
                lambda: all(node.broker.image.features.get("transaction.version") for node in cluster.brokers)
            )
        for partition in range(3):
            assert (await write(cluster, producer, 0, partition=partition, version=version)).error_code == 0
        await commit(cluster, producer, version=4 if version == CLASSIC else 5)
        for partition in range(3):
            held = cluster.leader("t", partition).replica("t", partition)
            assert held is not None
            await cluster.until(lambda held=held: held.last_stable_offset == 2)  # type: ignore[misc]


async def test_a_silent_coordinator_makes_producers_retry() -> None:
    async with memory_cluster(settings={**SETTINGS, "request.timeout.ms": 2_000}, has_tier=False) as cluster:
        await producer_of(cluster)
        silent = await cluster.until(lambda: coordinator(cluster))
        asking = next(node for node in cluster.brokers if node is not silent)
        asked = [("t", 0), ("t", 1)]
        codes = await verify(asking.broker, NAME, 1, 0, asked, adds=False)
        assert set(codes.values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}, "the connection is open now"
        cluster.network.cut(asking.host, silent.host)
        began = trio.current_time()
        assert set((await verify(asking.broker, NAME, 1, 0, asked, adds=False)).values()) == {
            ErrorCode.NETWORK_EXCEPTION
        }
        assert trio.current_time() - began < 20
        cluster.heal()
        await cluster.wait_healthy()

        async def ask() -> object:
            return set((await verify(asking.broker, NAME, 1, 0, asked, adds=False)).values())

        await eventually({ErrorCode.INVALID_PRODUCER_ID_MAPPING}, ask)


async def test_a_new_leader_continues_the_transactions_of_the_old_one() -> None:
    async with memory_cluster(settings=SETTINGS, has_tier=False) as cluster:
        producer = await producer_of(cluster, partitions=1)
        await add(cluster, producer, 1)
        for sequence in range(3):
            assert (await write(cluster, producer, sequence, version=CLASSIC)).error_code == 0
        old = cluster.leader("t")
        for node in cluster.brokers:
            found = node.replica("t")
            assert found is not None
            await cluster.until(lambda found=found: found.known_high_watermark == 3)  # type: ignore[misc]
            part = await committed(cluster, node)
            assert (part.error_code, part.last_stable_offset, part.high_watermark) == (0, 0, 3), "followers too"
        await old.kill()
        await cluster.until(lambda: cluster.partition("t").leader not in (-1, old.id))
        new = await cluster.until(lambda: cluster.leader("t") if cluster.leader("t").is_serving else None)
        await cluster.until(lambda: (held := new.replica("t")) is not None and held.is_leader)
        repeated = await write(cluster, producer, 1, version=CLASSIC)
        assert (repeated.error_code, repeated.base_offset) == (0, 1), "the new leader knows the last batches"
        assert (await write(cluster, producer, 3, version=CLASSIC)).error_code == 0
        assert (await committed(cluster, new)).last_stable_offset == 0
        await old.start()
        with suppress(ConnectionClosed):
            await commit(cluster, producer)
        await cluster.wait_healthy()
        for node in cluster.brokers:
            found = node.replica("t")
            assert found is not None
            await cluster.until(lambda found=found: found.known_high_watermark == 5)  # type: ignore[misc]
            part = await committed(cluster, node)
            assert part.last_stable_offset == 5
