"""TxnOffsetCommit: store a group's offsets inside a transaction."""

from wire.schema import field, message, struct
from wire.types import int16, int32, int64, string


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = field(versions="2+", default=-1, ignorable=True)
    committed_metadata: string | None


@struct
class TxnOffsetCommitRequestTopic:
    name: string
    partitions: list[TxnOffsetCommitRequestPartition]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 = field(versions="3+", default=-1)
    member_id: string = field(versions="3+", default="")
    group_instance_id: string | None = field(versions="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int32
    error_code: int16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    name: string
    partitions: list[TxnOffsetCommitResponsePartition]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]
