"""DescribeGroups: state, protocol and members of classic groups."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.coordinator.shard import refuse
from kbroker.handlers import Context, handles
from wire.errors import KafkaError
from wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS = 3
ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""Read, delete, describe, describe configs, alter configs: without an authorizer everybody may do everything."""
REPEATED_BYTES = 1 << 20
MEMBER_BYTES = 200
"""Names of a member, roughly."""


@handles(DescribeGroupsRequest, versions="0-6", on_error=lambda request, code: refuse(request, code, 0))
async def describe_groups(request: DescribeGroupsRequest, broker: Broker, context: Context) -> DescribeGroupsResponse:
    """Each group by itself, in the order of the request.

    One that is named twice is described twice, as by Kafka, until the repeats have REPEATED_BYTES; then it is left out:
    a short request must not multiply descriptions without end.
    """
    version = context.api_version
    groups: list[DescribedGroup] = []
    known: set[str] = set()
    repeated_bytes = 0
    for group_id in request.groups:
        if group_id in known and repeated_bytes > REPEATED_BYTES:
            continue
        found = _describe(broker, group_id, version)
        if group_id in known:
            repeated_bytes += sum(map(_size, found))
        known.add(group_id)
        groups += found
    if request.include_authorized_operations and version >= FIRST_VERSION_WITH_AUTHORIZED_OPERATIONS:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _size(group: DescribedGroup) -> int:
    """About as many bytes as its members take in the response."""
    return sum(len(one.member_metadata) + len(one.member_assignment) + MEMBER_BYTES for one in group.members)


def _describe(broker: Broker, group_id: str, version: int) -> list[DescribedGroup]:
    try:
        return broker.groups.shard_of(group_id).describe_groups([group_id], version)
    except KafkaError as error:
        refused = refuse(DescribeGroupsRequest(groups=[group_id]), error.code, version)
        assert isinstance(refused, DescribeGroupsResponse)
        return refused.groups
