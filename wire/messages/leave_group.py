"""LeaveGroup: members leave a classic group, from v3 on several at once."""

from wire.schema import field, message, struct
from wire.types import int16, int32, string


@struct
class MemberIdentity:
    member_id: string
    group_instance_id: string | None = None
    reason: string | None = field(versions="5+", default=None, ignorable=True)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: string
    member_id: string = field(versions="0-2", default="")
    members: list[MemberIdentity] = field(versions="3+", default=[])


@struct
class MemberResponse:
    member_id: string
    group_instance_id: string | None
    error_code: int16 = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = 0
    members: list[MemberResponse] = field(versions="3+", default=[])
