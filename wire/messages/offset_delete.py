"""OffsetDelete: delete committed offsets of a group. Never flexible; throttle_time_ms follows error_code (KIP-496)."""

from wire.schema import message, struct
from wire.types import int16, int32, string


@struct
class OffsetDeleteRequestPartition:
    partition_index: int32


@struct
class OffsetDeleteRequestTopic:
    name: string
    partitions: list[OffsetDeleteRequestPartition]


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteRequest:
    group_id: string
    topics: list[OffsetDeleteRequestTopic]


@struct
class OffsetDeleteResponsePartition:
    partition_index: int32
    error_code: int16 = 0


@struct
class OffsetDeleteResponseTopic:
    name: string
    partitions: list[OffsetDeleteResponsePartition]


@message(api_key=47, versions="0", flexible="none")
class OffsetDeleteResponse:
    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[OffsetDeleteResponseTopic]
