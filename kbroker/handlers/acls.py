"""CreateAcls, DeleteAcls and DescribeAcls: always refused, because there is no authorizer.

Like Kafka without an authorizer, the broker answers SECURITY_DISABLED, and closes the connection if a kind is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from wire.errors import ErrorCode
from wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from wire.refusals import refused

UNKNOWN = 0


@handles(CreateAclsRequest, versions="1-3")
async def create_acls(request: CreateAclsRequest, broker: Broker, context: Context) -> CreateAclsResponse:
    """Refuse each entry."""
    kinds = [
        (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type) for one in request.creations
    ]
    _check_kinds("CreateAcls", kinds)
    answer: CreateAclsResponse = refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return answer


@handles(DeleteAclsRequest, versions="1-3")
async def delete_acls(request: DeleteAclsRequest, broker: Broker, context: Context) -> DeleteAclsResponse:
    """Refuse each filter."""
    kinds = [
        (one.resource_type_filter, one.pattern_type_filter, one.operation, one.permission_type)
        for one in request.filters
    ]
    _check_kinds("DeleteAcls", kinds)
    answer: DeleteAclsResponse = refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return answer


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(request: DescribeAclsRequest, broker: Broker, context: Context) -> DescribeAclsResponse:
    """Refuse the filter."""
    kinds = (request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    _check_kinds("DescribeAcls", [kinds])
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker", resources=[]
    )


def _check_kinds(api: str, entries: Iterable[tuple[int, ...]]) -> None:
    for kinds in entries:
        if UNKNOWN in kinds:
            raise CloseConnection(f"{api} of an unknown kind")
