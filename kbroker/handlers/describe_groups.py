"""DescribeGroups: state, protocol and members of classic groups."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import KafkaError
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from wire.refusals import refused

FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS = 3
ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe configs, alter configs: without an authorizer every operation is allowed."""


@handles(DescribeGroupsRequest, versions="0-6")
async def describe_groups(request: DescribeGroupsRequest, broker: Broker, context: Context) -> DescribeGroupsResponse:
    """Describe each group once, in the order of the request. Kafka repeats a group that is named more than once."""
    version = context.api_version
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.groups):
        if broker.turns.due():
            await broker.turns.next()
        groups.append(_describe(broker, group_id, version))
    if request.include_authorized_operations and version >= FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, group_id: str, version: int) -> DescribedGroup:
    try:
        return broker.groups.shard_of(group_id).describe_group(group_id, version)
    except KafkaError as error:
        answer: DescribeGroupsResponse = refused(DescribeGroupsRequest(groups=[group_id]), error.code)
        return answer.groups[0]
