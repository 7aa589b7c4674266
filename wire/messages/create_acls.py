"""CreateAcls: add access control entries."""

from wire.schema import message, struct
from wire.types import int8, int16, int32, string


@struct
class AclCreation:
    resource_type: int8
    resource_name: string
    resource_pattern_type: int8 = 3
    principal: string
    host: string
    operation: int8
    permission_type: int8


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    creations: list[AclCreation]


@struct
class AclCreationResult:
    error_code: int16 = 0
    error_message: string | None


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: int32 = 0
    results: list[AclCreationResult]
