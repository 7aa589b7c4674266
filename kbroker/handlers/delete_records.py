"""DeleteRecords: raise log_start_offset, so that nobody reads below it any more."""

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
    """Delete what lies below the offset of each partition; -1 stands for its high watermark."""

    async def delete(topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        try:
            low_watermark = await broker.delete_records(topic, asked.partition_index, asked.offset)
        except KafkaError as error:
            return _failed(asked, error.code)
        return DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low_watermark)

    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[await delete(topic.name, partition) for partition in topic.partitions]
            )
            for topic in request.topics
        ]
    )
