"""CreateAcls: refused, since there is no authorizer that would heed access control entries."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

UNKNOWN = 0


def _refused(request: CreateAclsRequest, code: ErrorCode, why: str | None = None) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=why) for _ in request.creations]
    )


@handles(CreateAclsRequest, versions="1-3", on_error=_refused)
async def create_acls(request: CreateAclsRequest, broker: Broker, context: Context) -> CreateAclsResponse:
    """As Kafka without an authorizer: SECURITY_DISABLED, and nothing at all for an entry of an unknown kind."""
    for entry in request.creations:
        if UNKNOWN in (entry.resource_type, entry.resource_pattern_type, entry.operation, entry.permission_type):
            raise CloseConnection("CreateAcls of an unknown kind")
    return _refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
