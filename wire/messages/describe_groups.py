"""DescribeGroups: state and members of classic groups.

authorized operations are -0x80000000 unless the request asks for them.
"""

from wire.schema import field, message, struct
from wire.types import boolean, bytes_, int16, int32, string


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: list[string]
    include_authorized_operations: boolean = field(versions="3+", default=False)


@struct
class DescribedGroupMember:
    member_id: string
    group_instance_id: string | None = field(versions="4+", default=None, ignorable=True)
    client_id: string
    client_host: string
    member_metadata: bytes_
    member_assignment: bytes_


@struct
class DescribedGroup:
    error_code: int16 = 0
    error_message: string | None = field(versions="6+", default=None)
    group_id: string
    group_state: string
    protocol_type: string
    protocol_data: string
    members: list[DescribedGroupMember]
    authorized_operations: int32 = field(versions="3+", default=-0x80000000)


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    groups: list[DescribedGroup]
