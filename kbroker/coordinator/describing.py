"""ListGroups, DescribeGroups and DeleteGroups, each for the groups of one shard.

Source: GroupMetadataManager and GroupCoordinatorShard of Apache Kafka 4.3.1; KIP-1043 (GROUP_ID_NOT_FOUND from
DescribeGroups).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer.group import CONSUMER, ConsumerGroup
from kbroker.coordinator.consumer.group import STATES as CONSUMER_GROUP_STATES
from kbroker.coordinator.context import AnyGroup, Context
from kbroker.coordinator.expiry import tombstones
from kbroker.coordinator.group import DEAD, STABLE, GroupState
from kbroker.coordinator.records import offset_tombstone
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.describe_groups import DescribedGroup
from wire.messages.list_groups import ListedGroup

GROUP_TYPE: Final = "classic"
GROUP_TYPES: Final = frozenset({GROUP_TYPE, CONSUMER})
STATES: Final = frozenset({*(state.value for state in GroupState), *CONSUMER_GROUP_STATES})
GROUP_ID_NOT_FOUND_VERSION: Final = 6


def list_groups(groups: Iterable[AnyGroup], states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
    """The groups in these states and of these types, given as lower-case names; no names allow all groups."""
    listed = []
    for group in groups:
        if isinstance(group, ConsumerGroup):
            group_type, protocol_type = CONSUMER, CONSUMER
        else:
            group_type, protocol_type = GROUP_TYPE, group.protocol_type or ""
        state = group.state_name
        if (not states or state.lower() in states) and (not types or group_type in types):
            listed.append(
                ListedGroup(
                    group_id=group.group_id, protocol_type=protocol_type, group_state=state, group_type=group_type
                )
            )
    return listed


def describe_group(group: AnyGroup | None, group_id: str, api_version: int) -> DescribedGroup:
    """Describe one classic group. A missing group, and a consumer group, is described as Dead."""
    if group is None or isinstance(group, ConsumerGroup):
        missing = api_version >= GROUP_ID_NOT_FOUND_VERSION
        text = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
            error_message=text if missing else None,
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
        elif not group.is_empty:
            code = ErrorCode.NON_EMPTY_GROUP
        else:
            deleted.add(group_id)
            bury(context, group)
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)


def bury(context: Context, group: AnyGroup) -> None:
    """Write tombstones for a group and all its offsets."""
    group_id = group.group_id
    known = context.offsets.of_group(group_id)
    places = {(topic, partition) for topic, partitions in known.items() for partition in partitions}
    places.update(context.offsets.pending.places(group_id))
    context.records.extend(offset_tombstone(group_id, topic, partition) for topic, partition in sorted(places))
    context.counts.offset_deletions += len(places)
    context.records += tombstones(group)
