"""CreateAcls, DeleteAcls and DescribeAcls: the access control lists of the cluster.

The controller decides the changes. As in Kafka, the answer is SECURITY_DISABLED if there is no authorizer, and a kind
that is UNKNOWN closes the connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import CloseConnection, Context, handles
from kbroker.security.acl_filters import AclFilter
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from wire.refusals import refused

UNKNOWN = 0


@handles(CreateAclsRequest, versions="1-3")
async def create_acls(request: CreateAclsRequest, broker: Broker, context: Context) -> CreateAclsResponse:
    """Add entries. Errors: CLUSTER_AUTHORIZATION_FAILED; the others are those of each entry."""
    kinds = [
        (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type) for one in request.creations
    ]
    _check_kinds("CreateAcls", kinds)
    answer: CreateAclsResponse = await _decided(request, CreateAclsResponse, broker, context)
    return answer


@handles(DeleteAclsRequest, versions="1-3")
async def delete_acls(request: DeleteAclsRequest, broker: Broker, context: Context) -> DeleteAclsResponse:
    """Delete the entries that match a filter. Errors: CLUSTER_AUTHORIZATION_FAILED; others are those of each filter."""
    kinds = [
        (one.resource_type_filter, one.pattern_type_filter, one.operation, one.permission_type)
        for one in request.filters
    ]
    _check_kinds("DeleteAcls", kinds)
    answer: DeleteAclsResponse = await _decided(request, DeleteAclsResponse, broker, context)
    return answer


async def _decided(request: Any, response: type, broker: Broker, context: Context) -> Any:
    context.demand(Operation.ALTER, ResourceType.CLUSTER)
    if context.authorizer is None and broker.controller.active_id == broker.node_id:
        # A controller in another process decides by its own settings.
        return refused(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    answer: Any = await broker.controller.ask(request, response, version=context.api_version, sender=context.sender)
    context.throttle_ms = answer.throttle_time_ms
    await context.log_changes(broker.change_log, request, answer)
    return answer


@handles(DescribeAclsRequest, versions="1-3")
async def describe_acls(request: DescribeAclsRequest, broker: Broker, context: Context) -> DescribeAclsResponse:
    """List the entries that match a filter, by resource. Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED."""
    kinds = (request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    _check_kinds("DescribeAcls", [kinds])
    context.demand(Operation.DESCRIBE, ResourceType.CLUSTER)
    if context.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED,
            error_message="No Authorizer is configured on the broker",
            resources=[],
        )
    wanted = AclFilter.of(request)
    found: dict[tuple[int, int, str], list[AclDescription]] = {}
    for acl in broker.image.acls.values():
        if broker.turns.due():
            await broker.turns.next()
        if wanted.matches(acl):
            found.setdefault((acl.resource_type, acl.pattern_type, acl.resource_name), []).append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
            )
    resources = [
        DescribeAclsResource(resource_type=resource_type, resource_name=name, pattern_type=pattern_type, acls=acls)
        for (resource_type, pattern_type, name), acls in found.items()
    ]
    return DescribeAclsResponse(error_message=None, resources=resources)


def _check_kinds(api: str, entries: Iterable[tuple[int, ...]]) -> None:
    for kinds in entries:
        if UNKNOWN in kinds:
            raise CloseConnection(f"{api} of an unknown kind")
