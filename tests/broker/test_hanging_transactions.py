"""Transactions that no coordinator knows, on several brokers: they are found, and ended as kafka-transactions does.

They come from clients and brokers that do not verify transactions (KIP-890); here verification is off.
"""

from __future__ import annotations

from kbroker.testing.cluster import MemoryCluster, MemoryNode, memory_cluster
from tests.broker.test_transactional_replicas import committed, write
from tests.broker.test_transactions import SETTINGS
from wire.errors import ErrorCode
from wire.messages.describe_producers import DescribeProducersRequest, PartitionResponse, TopicRequest
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

PARTITIONS = range(3)
PRODUCER = InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=123_456, producer_epoch=7)


async def described(cluster: MemoryCluster, node: MemoryNode, partition: int) -> PartitionResponse:
    """What DescribeProducers of a broker answers about a partition."""
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[partition])])
    found = (await cluster.ask(node, request)).topics[0].partitions[0]
    assert isinstance(found, PartitionResponse)
    return found


async def abort(cluster: MemoryCluster, node: MemoryNode, partition: int) -> int:
    """The code with which a broker answers the marker that kafka-transactions sends for such a transaction."""
    marker = WritableTxnMarker(
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[partition])],
        coordinator_epoch=0,
    )
    answer = await cluster.ask(node, WriteTxnMarkersRequest(markers=[marker]), version=1)
    code = answer.markers[0].topics[0].partitions[0].error_code
    assert isinstance(code, int)
    return code


async def test_transactions_that_hang_on_several_brokers_are_found_and_ended() -> None:
    settings = {**SETTINGS, "transaction.partition.verification.enable": "false"}
    async with memory_cluster(settings=settings, has_tier=False) as cluster:
        await cluster.create_topic("t", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        for partition in PARTITIONS:
            assert (await write(cluster, PRODUCER, 0, partition=partition, version=9)).error_code == 0
        await cluster.nodes[1].kill()
        await cluster.until(lambda: cluster.partition("t", 0).leader == 2 and cluster.leader("t", 0).is_serving)
        # The new leader of partition 0 knows the transaction too, and no broker coordinates it.
        for partition in PARTITIONS:
            leader = cluster.leader("t", partition)
            await cluster.until(
                lambda leader=leader, partition=partition: leader.replica("t", partition).is_leader  # type: ignore[misc]
            )
            found = await described(cluster, leader, partition)
            (producer,) = found.active_producers
            assert (producer.producer_id, producer.current_txn_start_offset) == (PRODUCER.producer_id, 0)
            assert producer.coordinator_epoch == -1
        for node in (2, 3):
            listed = await cluster.ask(node, ListTransactionsRequest(state_filters=[], producer_id_filters=[]))
            assert (listed.error_code, listed.transaction_states) == (0, [])
        await cluster.nodes[1].start()
        await cluster.wait_healthy()
        for partition in PARTITIONS:
            leader = cluster.leader("t", partition)
            follower = next(node for node in cluster.brokers if node is not leader)
            (producer,) = (await described(cluster, follower, partition)).active_producers
            assert producer.current_txn_start_offset == 0, "kafka-transactions may ask followers, with --broker-id"
            assert await abort(cluster, follower, partition) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await abort(cluster, leader, partition) == ErrorCode.NONE
            (producer,) = (await described(cluster, leader, partition)).active_producers
            assert producer.current_txn_start_offset == -1
        for broker in cluster.brokers:
            for partition in PARTITIONS:
                replica = broker.replica("t", partition)
                assert replica is not None
                await cluster.until(lambda replica=replica: replica.known_high_watermark == 2)  # type: ignore[misc]
                assert replica.log.producers.first_unstable_offset is None
            part = await committed(cluster, broker)
            assert part.last_stable_offset == 2
            assert [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()] == [
                (PRODUCER.producer_id, 0)
            ]
