"""DescribeAcls: always refused, because there is no authorizer."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

UNKNOWN = 0


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(request: DescribeAclsRequest, broker: Broker, context: Context) -> DescribeAclsResponse:
    """Like Kafka without an authorizer: answer SECURITY_DISABLED; close the connection for a filter of unknown kind."""
    kinds = (
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    )
    if UNKNOWN in kinds:
        raise CloseConnection("DescribeAcls of an unknown kind")
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker", resources=[]
    )
