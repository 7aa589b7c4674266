"""DeleteAcls: always refused, because there is no authorizer."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

UNKNOWN = 0


def _refused(request: DeleteAclsRequest, code: ErrorCode, why: str | None = None) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=code, error_message=why, matching_acls=[]) for _ in request.filters
        ]
    )


@handles(DeleteAclsRequest, versions="1-3", on_error=_refused)
async def delete_acls(request: DeleteAclsRequest, broker: Broker, context: Context) -> DeleteAclsResponse:
    """Like Kafka without an authorizer: answer SECURITY_DISABLED; close the connection for a filter of unknown kind."""
    for one in request.filters:
        if UNKNOWN in (one.resource_type_filter, one.pattern_type_filter, one.operation, one.permission_type):
            raise CloseConnection("DeleteAcls of an unknown kind")
    return _refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
