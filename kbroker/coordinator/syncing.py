"""SyncGroup: the leader sends the assignment; each member gets its part when the assignment is stored.

Source: GroupMetadataManager.classicGroupSync of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from kbroker.coordinator import rebalance
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Parked
from kbroker.coordinator.consumer import classic_members
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.context import Context
from kbroker.coordinator.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, Group
from kbroker.coordinator.member import EMPTY_ASSIGNMENT, Member
from kbroker.coordinator.refusals import sync_error
from wire.errors import ErrorCode, KafkaError
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Answer = SyncGroupResponse | Parked


def sync_group(context: Context, request: SyncGroupRequest, caller: Caller) -> Answer:
    """Return a member's part of the assignment. Parked until the leader's assignment is stored."""
    group = context.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return classic_members.sync(context, group, request)
    if group is None or group.state is EMPTY:
        return sync_error(ErrorCode.UNKNOWN_MEMBER_ID)
    member = _validate(group, request)
    if group.state is PREPARING_REBALANCE:
        return sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        context.timers.cancel(group.sync)
    if group.state is not COMPLETING_REBALANCE:
        return rebalance.synced(group, member)
    parked = Parked(group.group_id, caller.api_version)
    context.park_sync(member, parked)
    if group.is_leader(member.member_id):
        _store_assignments(context, group, request)
    return parked


def _validate(group: Group, request: SyncGroupRequest) -> Member:
    member = group.validate_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return member


def _differ(asked: str | None, known: str | None) -> bool:
    return asked is not None and known is not None and asked != known


def _store_assignments(context: Context, group: Group, request: SyncGroupRequest) -> None:
    """Store the leader's assignment. Members that it omits get an empty part; entries for non-members are ignored."""
    given = {one.member_id: one.assignment for one in request.assignments}
    assignments = {member_id: given.get(member_id, EMPTY_ASSIGNMENT) for member_id in group.members}

    def is_current() -> bool:
        # A member may have joined or left while the record was written; a new generation then follows.
        return group.state is COMPLETING_REBALANCE and group.generation_id == request.generation_id

    def on_appended() -> None:
        if is_current():
            rebalance.give_assignments(context, group, assignments)

    def on_failed(code: ErrorCode) -> None:
        if is_current():
            rebalance.reset_assignments(context, group, code)
            rebalance.prepare(context, group)

    context.store_group(group, group.as_value(assignments), on_appended=on_appended, on_failed=on_failed)
