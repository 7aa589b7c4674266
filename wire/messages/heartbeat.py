"""Heartbeat: a member of a classic group reports that it is alive."""

from wire.schema import field, message
from wire.types import int16, int32, string


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: string | None = field(versions="3+", default=None)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = 0
