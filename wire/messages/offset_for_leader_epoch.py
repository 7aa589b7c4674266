"""OffsetForLeaderEpoch: where a leader epoch ends, for truncation and for the detection of lost records (KIP-101,
KIP-320)."""

from wire.schema import field, message, struct
from wire.types import int16, int32, int64, string


@struct
class OffsetForLeaderPartition:
    partition: int32
    current_leader_epoch: int32 = -1
    leader_epoch: int32


@struct
class OffsetForLeaderTopic:
    topic: string
    partitions: list[OffsetForLeaderPartition]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    replica_id: int32 = field(versions="3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


@struct
class EpochEndOffset:
    error_code: int16 = 0
    partition: int32
    leader_epoch: int32 = -1
    end_offset: int64 = -1


@struct
class OffsetForLeaderTopicResult:
    topic: string
    partitions: list[EpochEndOffset]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int32 = 0
    topics: list[OffsetForLeaderTopicResult]
