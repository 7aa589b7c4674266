"""ListGroups: the groups that this broker coordinates."""

from wire.schema import field, message, struct
from wire.types import int16, int32, string


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[string] = field(versions="4+", default=[])
    types_filter: list[string] = field(versions="5+", default=[])


@struct
class ListedGroup:
    group_id: string
    protocol_type: string
    group_state: string = field(versions="4+", default="", ignorable=True)
    group_type: string = field(versions="5+", default="", ignorable=True)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = 0
    groups: list[ListedGroup]
