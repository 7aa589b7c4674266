"""DeleteRecords: raise log_start_offset; offset -1 means the high watermark."""

from wire.schema import message, struct
from wire.types import int16, int32, int64, string


@struct
class DeleteRecordsPartition:
    partition_index: int32
    offset: int64


@struct
class DeleteRecordsTopic:
    name: string
    partitions: list[DeleteRecordsPartition]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


@struct
class DeleteRecordsPartitionResult:
    partition_index: int32
    low_watermark: int64
    error_code: int16 = 0


@struct
class DeleteRecordsTopicResult:
    name: string
    partitions: list[DeleteRecordsPartitionResult]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int32 = 0
    topics: list[DeleteRecordsTopicResult]
