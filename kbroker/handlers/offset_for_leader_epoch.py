"""OffsetForLeaderEpoch: the end offset of a leader epoch; replicas and consumers use it to detect log divergence."""

from __future__ import annotations

from collections.abc import Set

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(OffsetForLeaderEpochRequest, versions="2-4")
async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, broker: Broker, context: Context
) -> OffsetForLeaderEpochResponse:
    """Answer from the log's leader epochs; -1 if the epoch is unknown."""
    denied: Set[str] = frozenset()
    if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False):
        names = [topic.topic for topic in request.topics]
        denied = await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, names, broker.turns)
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            if broker.turns.due():
                await broker.turns.next()
            partitions.append(_answer(broker, topic.topic, partition, is_denied=topic.topic in denied))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(broker: Broker, topic: str, asked: OffsetForLeaderPartition, *, is_denied: bool) -> EpochEndOffset:
    try:
        if is_denied:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = broker.find(topic, asked.partition)
        partition.leading(asked.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=asked.partition, error_code=error.code)
    found = partition.end_of_epoch(asked.leader_epoch)
    if found is None:
        return EpochEndOffset(partition=asked.partition)
    return EpochEndOffset(partition=asked.partition, leader_epoch=found.leader_epoch, end_offset=found.end_offset)
