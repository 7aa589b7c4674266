"""JoinGroup: join a classic group; the reply waits for the rebalance.

protocol_name in an error is empty before v7 and null from then on. Only the leader gets members.
"""

from wire.schema import field, message, struct
from wire.types import boolean, bytes_, int16, int32, string


@struct
class JoinGroupRequestProtocol:
    name: string
    metadata: bytes_


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    group_id: string
    session_timeout_ms: int32
    rebalance_timeout_ms: int32 = field(versions="1+", default=-1, ignorable=True)
    member_id: string
    group_instance_id: string | None = field(versions="5+", default=None)
    protocol_type: string
    protocols: list[JoinGroupRequestProtocol]
    reason: string | None = field(versions="8+", default=None, ignorable=True)


@struct
class JoinGroupResponseMember:
    member_id: string
    group_instance_id: string | None = field(versions="5+", default=None, ignorable=True)
    metadata: bytes_


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: int32 = field(versions="2+", default=0, ignorable=True)
    error_code: int16 = 0
    generation_id: int32 = -1
    protocol_type: string | None = field(versions="7+", default=None, ignorable=True)
    protocol_name: string | None = field(nullable="7+")
    leader: string
    skip_assignment: boolean = field(versions="9+", default=False)
    member_id: string
    members: list[JoinGroupResponseMember]
