"""Produce: append batches to partitions, and answer when as many replicas have them as `acks` asks for.

The reply is never UNKNOWN_SERVER_ERROR: Java's producer would send the batch again, and a producer that is not
idempotent would then have written it twice. With acks=0 there is no reply; what went wrong closes the connection, so
that the client asks for new metadata.
"""

from __future__ import annotations

from kbroker.broker import Appended, Broker
from kbroker.handlers import Context, handles
from kbroker.storage.validation import RecordsRefused
from wire.errors import ErrorCode, KafkaError
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

NO_REPLY, LEADER_ONLY, ALL_IN_SYNC = 0, 1, -1
FIRST_VERSION_WITH_CURRENT_LEADER = 10


@handles(ProduceRequest, versions="3-11", advertised="0-11", on_error=lambda request, code: None)
async def produce(request: ProduceRequest, broker: Broker, context: Context) -> ProduceResponse | None:
    """Append every partition's batch by itself: one that is refused does not touch the others."""
    if request.acks not in (NO_REPLY, LEADER_ONLY, ALL_IN_SYNC):
        return _refused(request, ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        # No transaction can be open where there is no coordinator to open one.
        return _refused(request, ErrorCode.INVALID_TXN_STATE)
    responses: list[TopicProduceResponse] = []
    waiting: list[tuple[PartitionProduceResponse, Appended]] = []
    for topic in request.topic_data:
        answers = []
        for data in topic.partition_data:
            try:
                assert data.records is None or isinstance(data.records, memoryview), "what was decoded is a view"
                appended = await broker.append(
                    topic.name, data.index, data.records, version=context.api_version, all_in_sync=request.acks == -1
                )
            except KafkaError as error:
                if request.acks == NO_REPLY:
                    raise
                answers.append(_failed(data, error, broker, topic.name, context.api_version))
                continue
            answer = PartitionProduceResponse(
                index=data.index,
                base_offset=appended.base_offset,
                log_append_time_ms=appended.log_append_time_ms,
                log_start_offset=appended.log_start_offset,
            )
            answers.append(answer)
            if not appended.is_committed:
                waiting.append((answer, appended))
        responses.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
    if request.acks == NO_REPLY:
        return None
    if waiting and request.acks == ALL_IN_SYNC:
        await _wait_until_committed(waiting, broker, request.timeout_ms)
    return ProduceResponse(responses=responses, node_endpoints=_leaders(responses, broker, context))


async def _wait_until_committed(
    waiting: list[tuple[PartitionProduceResponse, Appended]], broker: Broker, timeout_ms: int
) -> None:
    """Wait for the in-sync replicas; a client that goes away changes nothing about what was received."""
    await broker.purgatory.wait(
        *(appended.partition.key for _, appended in waiting),
        until=lambda: all(appended.is_decided for _, appended in waiting),
        max_wait_ms=timeout_ms,
    )
    for answer, appended in waiting:
        code = appended.outcome()
        if code is not ErrorCode.NONE:
            answer.error_code, answer.base_offset = code, -1


def _failed(
    data: PartitionProduceData, error: KafkaError, broker: Broker, topic: str, version: int
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=data.index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=wrong.batch_index, batch_index_error_message=wrong.message)
            for wrong in (error.record_errors if isinstance(error, RecordsRefused) else ())
        ],
        error_message=error.message or None,
    )
    if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= FIRST_VERSION_WITH_CURRENT_LEADER:
        partition = broker.find(topic, data.index)
        answer.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
    return answer


def _refused(request: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    if request.acks == NO_REPLY:
        raise KafkaError(code)
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _leaders(responses: list[TopicProduceResponse], broker: Broker, context: Context) -> list[NodeEndpoint]:
    named = {
        answer.current_leader.leader_id
        for topic in responses
        for answer in topic.partition_responses
        if answer.current_leader is not None
    }
    if not named:
        return []
    return [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in broker.nodes(context.listener)
        if node.id in named
    ]
