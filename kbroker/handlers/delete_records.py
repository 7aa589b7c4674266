"""DeleteRecords: raise log_start_offset, so that earlier records can no longer be read."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
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


@handles(DeleteRecordsRequest, versions="0-2", on_error=_refused)
async def delete_records(request: DeleteRecordsRequest, broker: Broker, context: Context) -> DeleteRecordsResponse:
    """Delete the records below the given offset of each partition; -1 means its high watermark."""

    topics = []
    raised = False
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            if broker.turns.due():
                await broker.turns.next()
            try:
                low_watermark = await broker.delete_records(topic.name, asked.partition_index, asked.offset)
            except KafkaError as error:
                results.append(_failed(asked, error.code))
                continue
            raised = True
            results.append(
                DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low_watermark)
            )
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if raised:
        await broker.write_log_starts()
    return DeleteRecordsResponse(topics=topics)
