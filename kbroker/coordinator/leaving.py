"""Heartbeat and LeaveGroup.

Source: GroupMetadataManager.classicGroupHeartbeat and classicGroupLeave of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator import rebalance
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer import classic_members
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.context import Context
from kbroker.coordinator.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, Group
from wire.errors import ErrorCode, KafkaError
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

SEVERAL_MEMBERS_VERSION: Final = 3


def heartbeat(context: Context, request: HeartbeatRequest, _caller: Caller) -> HeartbeatResponse:
    """Extend the member's session. The response says whether the member has to rejoin."""
    group = context.groups.get(request.group_id)
    if group is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if isinstance(group, ConsumerGroup):
        return classic_members.heartbeat(context, group, request)
    member = group.validate_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    context.extend_session(member)
    if group.state is PREPARING_REBALANCE:
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return HeartbeatResponse()


def leave_group(context: Context, request: LeaveGroupRequest, caller: Caller) -> LeaveGroupResponse:
    """Remove members, given by member id or, for static members, by instance id alone."""
    if caller.api_version >= SEVERAL_MEMBERS_VERSION:
        return _leave(context, request.group_id, request.members)
    response = _leave(context, request.group_id, [MemberIdentity(member_id=request.member_id)])
    return LeaveGroupResponse(error_code=response.members[0].error_code)


def _leave(context: Context, group_id: str, identities: list[MemberIdentity]) -> LeaveGroupResponse:
    group = context.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return classic_members.leave(context, group, identities)
    answers = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID if group is None else _remove(context, group, identity),
        )
        for identity in identities
    ]
    if group is not None and any(answer.error_code == ErrorCode.NONE for answer in answers):
        if group.state in (STABLE, COMPLETING_REBALANCE):
            rebalance.prepare(context, group)
        else:
            rebalance.complete_if_all_joined(context, group)
    return LeaveGroupResponse(members=answers)


def _remove(context: Context, group: Group, identity: MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if not member_id:
        # An administrator removes a static member and knows only its instance id.
        known = group.static_members.get(identity.group_instance_id or "")
        if identity.group_instance_id is None or known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        context.remove_member(group, group.members[known])
        return ErrorCode.NONE
    if member_id in group.pending_join:
        rebalance.take_pending(context, group, member_id)
        return ErrorCode.NONE
    try:
        context.remove_member(group, group.validate_member(member_id, identity.group_instance_id))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
