"""CreateAcls: always refused, because there is no authorizer."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from wire.refusals import refused

UNKNOWN = 0


@handles(CreateAclsRequest, versions="1-3")
async def create_acls(request: CreateAclsRequest, broker: Broker, context: Context) -> CreateAclsResponse:
    """Like Kafka without an authorizer: answer SECURITY_DISABLED; close the connection for an entry of unknown kind."""
    for entry in request.creations:
        if UNKNOWN in (entry.resource_type, entry.resource_pattern_type, entry.operation, entry.permission_type):
            raise CloseConnection("CreateAcls of an unknown kind")
    answer: CreateAclsResponse = refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return answer
