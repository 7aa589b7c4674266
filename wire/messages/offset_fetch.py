"""OffsetFetch: read committed offsets, from v8 on of several groups at once.

A partition without an offset is answered with -1, empty metadata and no error. topics None means all (v2+).
"""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, boolean, int16, int32, int64, string, uuid


@struct
class OffsetFetchRequestTopic:
    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: list[int32]


@struct
class OffsetFetchRequestGroup:
    group_id: string
    member_id: string | None = field(versions="9+", default=None, ignorable=True)
    member_epoch: int32 = field(versions="9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopic] | None


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    group_id: string = field(versions="0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field(versions="0-7", nullable="2-7", default=[])
    groups: list[OffsetFetchRequestGroup] = field(versions="8+", default=[])
    require_stable: boolean = field(versions="7+", default=False)


@struct
class OffsetFetchResponsePartition:
    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: int32 = field(versions="5+", default=-1, ignorable=True)
    metadata: string | None
    error_code: int16 = 0


@struct
class OffsetFetchResponseTopic:
    name: string = field(versions="0-9", default="", ignorable=True)
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponsePartition]


@struct
class OffsetFetchResponseGroup:
    group_id: string
    topics: list[OffsetFetchResponseTopic]
    error_code: int16 = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(versions="0-7", default=[])
    error_code: int16 = field(versions="2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(versions="8+", default=[])
