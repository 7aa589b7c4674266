"""ListOffsets: the offset for a timestamp, or for -1 (latest) down to -6 (earliest pending upload)."""

from wire.schema import field, message, struct
from wire.types import int8, int16, int32, int64, string


@struct
class ListOffsetsPartition:
    partition_index: int32
    current_leader_epoch: int32 = field(versions="4+", default=-1, ignorable=True)
    timestamp: int64


@struct
class ListOffsetsTopic:
    name: string
    partitions: list[ListOffsetsPartition]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    replica_id: int32
    isolation_level: int8 = field(versions="2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: int32 = field(versions="10+", default=0, ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    partition_index: int32
    error_code: int16 = 0
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: int32 = field(versions="4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: string
    partitions: list[ListOffsetsPartitionResponse]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]
