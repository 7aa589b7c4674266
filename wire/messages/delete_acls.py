"""DeleteAcls: delete the access control entries that match filters."""

from wire.schema import message, struct
from wire.types import int8, int16, int32, string


@struct
class DeleteAclsFilter:
    resource_type_filter: int8
    resource_name_filter: string | None
    pattern_type_filter: int8 = 3
    principal_filter: string | None
    host_filter: string | None
    operation: int8
    permission_type: int8


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter]


@struct
class DeleteAclsMatchingAcl:
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string
    pattern_type: int8 = 3
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct
class DeleteAclsFilterResult:
    error_code: int16 = 0
    error_message: string | None
    matching_acls: list[DeleteAclsMatchingAcl]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: int32 = 0
    filter_results: list[DeleteAclsFilterResult]
