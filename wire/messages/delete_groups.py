"""DeleteGroups: delete empty groups with their offsets."""

from wire.schema import message, struct
from wire.types import int16, int32, string


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[string]


@struct
class DeletableGroupResult:
    group_id: string
    error_code: int16 = 0


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int32 = 0
    results: list[DeletableGroupResult]
