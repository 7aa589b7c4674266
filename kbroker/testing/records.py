"""Methods of `MemoryCluster` that put records into topics and read what topics and groups hold, as any client does.

All of them wait up to a minute of virtual time for a leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from kbroker.client.streaming import ConnectionClosed
from wire.errors import ErrorCode, KafkaError, check
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
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
_OUTCOME_UNKNOWN: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


async def produce(
    cluster: MemoryCluster, topic: str, *values: bytes | Record, index: int = 0, acks: int = -1
) -> list[int]:
    """Append one batch to a partition, and return the offsets of its records.

    A value becomes a record without a key that has the time of `cluster.clock`. The batch is sent again only if it was
    certainly not appended.

    Errors  KafkaError; ConnectionClosed and trio.TooSlowError, after which the batch may have been appended or not
    """
    now_ms = cluster.clock.timestamp_ms()
    records = [each if isinstance(each, Record) else Record(timestamp=now_ms, value=each) for each in values]
    data = PartitionProduceData(index=index, records=build_batch(records))
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )

    async def append() -> list[int]:
        answer = (await _ask(cluster, cluster.leader(topic, index), request, 9)).responses[0]
        found = answer.partition_responses[0]
        check(found.error_code, found.error_message)
        return [found.base_offset + number for number in range(len(records))]

    return await _retried(append, is_repeatable=False)


async def records(cluster: MemoryCluster, topic: str, *, index: int = 0, start: int | None = None) -> list[Record]:
    """The committed records of a partition, from its log start or from an offset; those in the tier too.

    Errors  KafkaError, trio.TooSlowError
    """
    found: list[Record] = []
    position = await _retried(lambda: _log_start(cluster, topic, index)) if start is None else start
    while True:
        answer = await _retried(lambda at=position: _fetch(cluster, topic, index, at))  # type: ignore[misc]
        read = (record for batch in batches(answer.records or b"") for record in batch.records())
        found += (record for record in read if record.offset >= position)
        position = found[-1].offset + 1 if found else position
        if position >= answer.high_watermark:
            return found


async def consumer_offset(cluster: MemoryCluster, group: str, topic: str, *, index: int = 0) -> int | None:
    """The offset that a group has committed for a partition; None if it has none. Errors: KafkaError, TooSlowError."""
    asked = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[index])], require_stable=True
    )

    async def look_up() -> int | None:
        serving = next((node for node in cluster.brokers if node.is_serving), cluster.brokers[0])
        found = await _ask(cluster, serving, FindCoordinatorRequest(key=group), 3)
        check(found.error_code, found.error_message)
        answer = await _ask(cluster, found.node_id, asked, 7)
        check(answer.error_code)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return None if offset < 0 else offset

    return await _retried(look_up)


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


async def _retried(attempt: Callable[[], Awaitable[T]], *, is_repeatable: bool = True) -> T:
    """Repeat what failed because a leader is missing or has just changed; is_repeatable: also if it may have happened.

    Errors  KafkaError; ConnectionClosed if it is not repeatable; trio.TooSlowError
    """
    with trio.fail_after(_WITHIN_S):
        while True:
            try:
                return await attempt()
            except (KeyError, ConnectionRefusedError):
                pass  # no leader, or it has just ended
            except ConnectionClosed:
                if not is_repeatable:
                    raise
            except KafkaError as error:
                if not error.code.retriable or (error.code in _OUTCOME_UNKNOWN and not is_repeatable):
                    raise
            await trio.sleep(_RETRY_S)
