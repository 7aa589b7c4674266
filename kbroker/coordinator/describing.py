"""ListGroups, DescribeGroups and DeleteGroups, each for the groups of one shard.

Source: GroupMetadataManager and GroupCoordinatorShard of Apache Kafka 4.3.1; KIP-1043 (GROUP_ID_NOT_FOUND from
DescribeGroups).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kbroker.coordinator.context import Caller, Context
from kbroker.coordinator.group import DEAD, EMPTY, STABLE, Group
from kbroker.coordinator.records import group_tombstone, offset_tombstone
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import DescribedGroup
from wire.messages.list_groups import ListedGroup

GROUP_TYPE: Final = "classic"
GROUP_ID_NOT_FOUND_VERSION: Final = 6


def list_groups(groups: Iterable[Group], states: Collection[str]) -> list[ListedGroup]:
    """The groups in these states, given as lower-case names; all groups if there are none."""
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=GROUP_TYPE,
        )
        for group in groups
        if not states or group.state.value.lower() in states
    ]


def describe_group(group: Group | None, group_id: str, api_version: int) -> DescribedGroup:
    """Describe one group. A missing group is described as Dead."""
    if group is None:
        missing = api_version >= GROUP_ID_NOT_FOUND_VERSION
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
            error_message=f"Group {group_id} not found." if missing else None,
            group_id=group_id,
            group_state=DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    protocol_name = group.protocol_name if group.state is STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name or "",
        members=[member.described(protocol_name) for member in group.members.values()],
    )


def delete_groups(context: Context, request: DeleteGroupsRequest, _caller: Caller) -> DeleteGroupsResponse:
    """Delete groups without members, and their offsets."""
    results = []
    deleted: set[str] = set()
    for group_id in request.groups_names:
        group = context.groups.get(group_id)
        code = ErrorCode.NONE
        if group is None or group_id in deleted:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not EMPTY:
            code = ErrorCode.NON_EMPTY_GROUP
        else:
            deleted.add(group_id)
            bury(context, group_id)
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)


def bury(context: Context, group_id: str) -> None:
    """Write tombstones for a group and all its offsets."""
    known = context.offsets.of_group(group_id)
    places = {(topic, partition) for topic, partitions in known.items() for partition in partitions}
    places.update(context.offsets.pending.places(group_id))
    context.records.extend(offset_tombstone(group_id, topic, partition) for topic, partition in sorted(places))
    context.counts.offset_deletions += len(places)
    context.records.append(group_tombstone(group_id))
