"""SyncGroup: the group leader sends the assignment, and each member gets its part."""

from wire.schema import field, message, struct
from wire.types import bytes_, int16, int32, string


@struct
class SyncGroupRequestAssignment:
    member_id: string
    assignment: bytes_


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: string | None = field(versions="3+", default=None)
    protocol_type: string | None = field(versions="5+", default=None, ignorable=True)
    protocol_name: string | None = field(versions="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment]


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = 0
    protocol_type: string | None = field(versions="5+", default=None, ignorable=True)
    protocol_name: string | None = field(versions="5+", default=None, ignorable=True)
    assignment: bytes_
