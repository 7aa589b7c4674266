"""DescribeAcls: the access control entries that match a filter; None in the filter matches anything."""

from wire.schema import message, struct
from wire.types import int8, int16, int32, string


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: int8
    resource_name_filter: string | None
    pattern_type_filter: int8 = 3
    principal_filter: string | None
    host_filter: string | None
    operation: int8
    permission_type: int8


@struct
class AclDescription:
    principal: string
    host: string
    operation: int8
    permission_type: int8


@struct
class DescribeAclsResource:
    resource_type: int8
    resource_name: string
    pattern_type: int8 = 3
    acls: list[AclDescription]


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
    resources: list[DescribeAclsResource]
