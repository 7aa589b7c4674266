"""Methods of `MemoryCluster` that create topics, produce, and read what topics and groups hold, as any client does.

All but `create_topic` repeat a request that fails because a leader is missing or ends, for up to a virtual minute.

Errors  KafkaError; if no broker has answered, ConnectionClosed, ConnectionRefusedError, KeyError (the partition has no
        leader) or trio.TooSlowError
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from kbroker.client.streaming import ConnectionClosed
from wire.errors import KafkaError, check
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, batches, build_batch

if TYPE_CHECKING:
    from kbroker.testing.cluster import MemoryCluster, MemoryNode

T = TypeVar("T")

_RETRY_S: Final = 0.05
_WITHIN_S: Final = 60
_CONNECT_S: Final = 2
_EARLIEST: Final = -2
_FETCH_BYTES: Final = 1 << 20


async def create_topic(
    cluster: MemoryCluster,
    name: str,
    *,
    partitions: int = 1,
    replicas: int | Sequence[Sequence[int]] | None = None,
    **configs: object,
) -> None:
    """Create a topic and wait until every running broker knows it.

    Shape   replicas is their number, or the broker ids of each partition, by default 3 or the number of brokers if that
            is less; configs are Kafka's with _ for the dots
    """
    replicas = min(3, len(cluster.brokers)) if replicas is None else replicas
    assignments = [] if isinstance(replicas, int) else replicas
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if assignments else partitions,
        replication_factor=replicas if isinstance(replicas, int) else -1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
            for index, ids in enumerate(assignments)
        ],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()],
    )
    answer = await _ask(cluster, _any_broker(cluster), CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    check(answer.topics[0].error_code, answer.topics[0].error_message)
    await cluster.until(
        lambda: all(
            node.image is not None and name in node.image.topics_by_name for node in cluster.brokers if node.is_serving
        )
    )


async def produce(cluster: MemoryCluster, topic: str, *values: bytes | Record, index: int = 0) -> list[int]:
    """Append one batch to a partition once, with acks=all, and return the offsets of its records.

    A value becomes a record without a key that has the time of `cluster.clock`. A producer id makes it safe to send the
    batch again after an error.

    Errors  those of this module; after a retriable one the batch may have been appended or not
    """
    now_ms = cluster.clock.timestamp_ms()
    records = [each if isinstance(each, Record) else Record(timestamp=now_ms, value=each) for each in values]
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    producer = await _retried(lambda: _ask(cluster, _any_broker(cluster), request, 4))
    check(producer.error_code)
    batch = build_batch(
        records, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])

    async def append() -> list[int]:
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        answer = await _ask(cluster, cluster.leader(topic, index), request, 9)
        found = answer.responses[0].partition_responses[0]
        check(found.error_code, found.error_message)
        return [found.base_offset + number for number in range(len(records))]

    return await _retried(append)


async def records(cluster: MemoryCluster, topic: str, *, index: int = 0, start: int | None = None) -> list[Record]:
    """The committed records of a partition, from its log start or from an offset; those in the tier too."""
    found: list[Record] = []
    position = await _retried(lambda: _log_start(cluster, topic, index)) if start is None else start
    while True:
        answer = await _retried(lambda at=position: _fetch(cluster, topic, index, at))  # type: ignore[misc]
        read = list(batches(answer.records or b""))
        found += [
            record for batch in read if not batch.is_control for record in batch.records() if record.offset >= position
        ]
        position = max([position, *(batch.next_offset for batch in read)])  # the cleaner may have left empty batches
        if position >= answer.high_watermark:
            return found


async def consumer_offset(cluster: MemoryCluster, group: str, topic: str, *, index: int = 0) -> int | None:
    """The offset that a group has committed for a partition; None if it has none."""
    asked = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[index])], require_stable=True
    )

    async def look_up() -> int | None:
        found = await _ask(cluster, _any_broker(cluster), FindCoordinatorRequest(key=group), 3)
        check(found.error_code, found.error_message)
        answer = await _ask(cluster, found.node_id, asked, 7)
        check(answer.error_code)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return None if offset < 0 else offset

    return await _retried(look_up)


def _any_broker(cluster: MemoryCluster) -> MemoryNode:
    return next((node for node in cluster.brokers if node.is_serving), cluster.brokers[0])


async def _log_start(cluster: MemoryCluster, topic: str, index: int) -> int:
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=_EARLIEST)])
    answer = await _ask(cluster, cluster.leader(topic, index), ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)
    found = answer.topics[0].partitions[0]
    check(found.error_code)
    offset: int = found.offset
    return offset


async def _fetch(cluster: MemoryCluster, topic: str, index: int, offset: int) -> Any:
    """What a partition has at an offset; without records only at the high watermark."""
    partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[partition])])
    while True:
        answer = await _ask(cluster, cluster.leader(topic, index), request, 12)
        found = answer.responses[0].partitions[0]
        check(found.error_code)
        if found.records or offset >= found.high_watermark:
            return found


async def _ask(cluster: MemoryCluster, node: MemoryNode | int, request: object, version: int) -> Any:
    """One request over a connection of its own, which fails soon if it cannot be opened."""
    client = None
    with trio.move_on_after(_CONNECT_S):
        client = await cluster.connect(node)
    if client is None:
        raise ConnectionRefusedError(f"no connection to {node} in {_CONNECT_S} s")
    try:
        return await client.ask(request, version=version)
    finally:
        client.close()


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat what fails because a leader is missing, has just changed or dies.

    Errors  the last retriable one after a minute, or trio.TooSlowError; other KafkaErrors at once
    """
    failure: Exception = trio.TooSlowError("no answer")
    with trio.move_on_after(_WITHIN_S):
        while True:
            try:
                return await attempt()
            except (KeyError, ConnectionRefusedError, ConnectionClosed) as error:  # no leader, or it has just ended
                failure = error
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                failure = error
            await trio.sleep(_RETRY_S)
    raise failure
