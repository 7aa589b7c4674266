"""OffsetCommit: store the offsets that a group has consumed."""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int16, int32, int64, string, uuid


@struct
class OffsetCommitRequestPartition:
    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = field(versions="6+", default=-1, ignorable=True)
    committed_metadata: string | None


@struct
class OffsetCommitRequestTopic:
    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    group_id: string
    generation_id_or_member_epoch: int32 = -1
    member_id: string
    group_instance_id: string | None = field(versions="7+", default=None)
    retention_time_ms: int64 = field(versions="2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


@struct
class OffsetCommitResponsePartition:
    partition_index: int32
    error_code: int16 = 0


@struct
class OffsetCommitResponseTopic:
    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]
