"""DeleteRecords: raise log_start_offset, so that earlier records can no longer be read."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.storage.checkpoint import TopicPartition
from wire.errors import ErrorCode, KafkaError
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


def _refused(request: DeleteRecordsRequest, code: ErrorCode) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_failed(partition, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _failed(asked: DeleteRecordsPartition, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1, error_code=code)


def _finish(result: DeleteRecordsPartitionResult, low_watermark: int | None) -> None:
    """After the wait for the followers: the error if they have not followed, or if this broker no longer leads."""
    if result.error_code:
        return
    if low_watermark is None:
        result.error_code, result.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
    elif low_watermark < result.low_watermark:
        result.error_code = ErrorCode.REQUEST_TIMED_OUT
        result.low_watermark = low_watermark
    else:
        result.low_watermark = low_watermark


@handles(DeleteRecordsRequest, versions="0-2", on_error=_refused)
async def delete_records(request: DeleteRecordsRequest, broker: Broker, context: Context) -> DeleteRecordsResponse:
    """Delete the records below the given offset of each partition; -1 means its high watermark. Wait until the live
    followers have followed.
    """
    names = [topic.name for topic in request.topics]
    denied = await context.denied(Operation.DELETE, ResourceType.TOPIC, names, broker.turns)
    topics: list[DeleteRecordsTopicResult] = []
    raised: dict[TopicPartition, int] = {}
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            if broker.turns.due():
                await broker.turns.next()
            if topic.name in denied:
                results.append(_failed(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            try:
                low_watermark = await broker.delete_records(topic.name, asked.partition_index, asked.offset)
            except KafkaError as error:
                results.append(_failed(asked, error.code))
                continue
            raised[topic.name, asked.partition_index] = low_watermark
            results.append(
                DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low_watermark)
            )
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if raised:
        await broker.write_log_starts()
        await broker.await_low_watermarks(raised, max_wait_ms=request.timeout_ms)
        for answer in topics:
            for result in answer.partitions:
                if broker.turns.due():
                    await broker.turns.next()
                _finish(result, broker.low_watermark((answer.name, result.partition_index)))
    whole = DeleteRecordsResponse(topics=topics)
    await context.log_changes(broker.change_log, request, whole)
    return whole
