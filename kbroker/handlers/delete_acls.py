"""DeleteAcls: always refused, because there is no authorizer."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from wire.refusals import refused

UNKNOWN = 0


@handles(DeleteAclsRequest, versions="1-3")
async def delete_acls(request: DeleteAclsRequest, broker: Broker, context: Context) -> DeleteAclsResponse:
    """Like Kafka without an authorizer: answer SECURITY_DISABLED; close the connection for a filter of unknown kind."""
    for one in request.filters:
        if UNKNOWN in (one.resource_type_filter, one.pattern_type_filter, one.operation, one.permission_type):
            raise CloseConnection("DeleteAcls of an unknown kind")
    answer: DeleteAclsResponse = refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return answer
