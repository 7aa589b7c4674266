"""DescribeProducers: the idempotent producers that the partitions of this broker remember."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.names import topic_name_fault
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def _failed(index: int, error: KafkaError) -> PartitionResponse:
    return PartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message or None, active_producers=[]
    )


@handles(DescribeProducersRequest, versions="0")
async def describe_producers(
    request: DescribeProducersRequest, broker: Broker, context: Context
) -> DescribeProducersResponse:
    """Answer each partition independently of the others.

    A partition that is named twice is answered once: it can have many producers, and a short request must not multiply
    the size of the response.
    """
    asked: dict[str, list[int]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, []).extend(topic.partition_indexes)
    topics = []
    for name, indexes in asked.items():
        if broker.turns.due():
            await broker.turns.next()
        may_read = context.may(Operation.READ, ResourceType.TOPIC, name)
        partitions = [await _describe(broker, name, index, may_read=may_read) for index in dict.fromkeys(indexes)]
        topics.append(TopicResponse(name=name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


async def _describe(broker: Broker, topic: str, index: int, *, may_read: bool) -> PartitionResponse:
    turns = broker.turns
    if turns.due():
        await turns.next()
    try:
        if (fault := topic_name_fault(topic)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if not may_read:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        producers = list(broker.find(topic, index).log.producers.producers.values())
    except KafkaError as error:
        return _failed(index, error)
    states = []
    for one in producers:
        if turns.due():
            await turns.next()
        state = ProducerState(
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            last_sequence=one.last_sequence,
            last_timestamp=one.last_timestamp_ms,
            coordinator_epoch=one.coordinator_epoch,
            current_txn_start_offset=one.current_txn_first_offset,
        )
        states.append(state)
    return PartitionResponse(partition_index=index, active_producers=states)
