"""JoinGroup: admission of members, and when the request is answered.

The order of checks is Kafka's: session timeout, known member id, room in the group, protocols, static id, state.
Source: GroupMetadataManager.classicGroupJoin of Apache Kafka 4.3.1; KIP-394 (member ids are required), KIP-345 (static
members), KIP-814 (skip_assignment).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from kbroker.coordinator import rebalance
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.ports import Parked
from kbroker.coordinator.consumer import classic_members
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.records import group_tombstones
from kbroker.coordinator.context import NEW_MEMBER_JOIN_TIMEOUT_MS, Context
from kbroker.coordinator.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, Group
from kbroker.coordinator.member import Member, protocols_of
from kbroker.coordinator.refusals import join_error, sync_error
from kbroker.coordinator.timers import Timer
from wire.errors import ErrorCode, KafkaError
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

MEMBER_ID_REQUIRED_VERSION: Final = 4
SKIP_ASSIGNMENT_VERSION: Final = 9
LONGEST_STRING_BYTES: Final = 0x7FFF
PENDING_BYTES: Final = 600
"""Estimated memory for an assigned member id, in addition to its characters."""

Answer = JoinGroupResponse | Parked


class Joining(NamedTuple):
    """The current JoinGroup; protocols are the request's, by name."""

    request: JoinGroupRequest
    caller: Caller
    protocols: dict[str, bytes]

    def update(self, group: Group, member: Member) -> None:
        """Update an existing member from the request."""
        request = self.request
        group.update(
            member,
            self.protocols,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
        )

    def parked(self) -> Parked:
        """A Parked for this request."""
        return Parked(self.request.group_id, self.caller.api_version)


def join_group(context: Context, request: JoinGroupRequest, caller: Caller) -> Answer:
    """Add or readmit a member. The response is Parked until the rebalance is prepared."""
    settings = context.settings
    timeout_ms = request.session_timeout_ms
    if not settings.group_min_session_timeout_ms <= timeout_ms <= settings.group_max_session_timeout_ms:
        return join_error(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
    if caller.api_version == 0:
        request.rebalance_timeout_ms = timeout_ms
    known = context.groups.get(request.group_id)
    if isinstance(known, ConsumerGroup) and not known.is_empty:
        return classic_members.join(context, known, request, caller)
    joining = Joining(request, caller, protocols_of(request.protocols))
    if isinstance(known, Group):
        return _join(context, known, joining)
    if request.member_id:
        return join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
    if known is not None:
        context.records += group_tombstones(known)  # a consumer group without members
    group = rebalance.create_group(context, request.group_id)
    # The value is taken before the join, so the record is an empty group that a new coordinator can load.
    value = group.as_value({})
    answer = _join(context, group, joining)

    def on_failed(code: ErrorCode) -> None:
        rebalance.give_up_new_group(context, group, code)
        if known is not None:
            context.groups[request.group_id] = known

    context.store_group(group, value, on_failed=on_failed)
    return answer


def _join(context: Context, group: Group, joining: Joining) -> Answer:
    request = joining.request
    member = group.members.get(request.member_id)
    if not _has_room(context, group, member):
        if member is not None:
            context.remove_member(group, member)
        elif request.member_id in group.pending_join:
            rebalance.take_pending(context, group, request.member_id)
        return join_error(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not group.supports(request.protocol_type, joining.protocols):
        return join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
    if not request.member_id:
        return _join_new(context, group, joining)
    if request.member_id in group.pending_join:
        if request.group_instance_id is not None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a static member must not use an assigned member id")
        rebalance.take_pending(context, group, request.member_id)
        return _add(context, group, joining, request.member_id)
    try:
        member = group.validate_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return join_error(error.code, request.member_id)
    return _rejoin(context, group, member, joining)


def _has_room(context: Context, group: Group, member: Member | None) -> bool:
    """Whether this member may be in the group.

    In PreparingRebalance only the members that have joined count. So if `group.max.size` was lowered, the group loses
    the members that join last.
    """
    size = context.settings.group_max_size
    if group.state is PREPARING_REBALANCE:
        return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < size
    if group.state in (COMPLETING_REBALANCE, STABLE):
        return member is not None or len(group.members) < size
    return True


def _join_new(context: Context, group: Group, joining: Joining) -> Answer:
    """Handle a JoinGroup without a member id."""
    request, caller = joining.request, joining.caller
    instance_id = request.group_instance_id
    member_id = f"{caller.client_id if instance_id is None else instance_id}-{context.new_uuid()}"
    if len(member_id.encode()) > LONGEST_STRING_BYTES:
        # Kafka closes the connection because it cannot encode the response. The group could not be stored either.
        return join_error(ErrorCode.INVALID_REQUEST)
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known is not None:
            return _replace_static(context, group, group.members[known], joining, member_id)
        return _add(context, group, joining, member_id)
    if caller.api_version < MEMBER_ID_REQUIRED_VERSION:
        return _add(context, group, joining, member_id)
    # The client must rejoin with this id. A client that disconnects before it gets the id leaves no member behind.
    timer = group.pending_join[member_id] = Timer(partial(rebalance.on_pending_end, context, group, member_id))
    context.note_pending(timer, PENDING_BYTES + len(member_id), request.session_timeout_ms)
    return join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)


def _add(context: Context, group: Group, joining: Joining, member_id: str) -> Answer:
    """Add a new member and park its request."""
    request, caller = joining.request, joining.caller
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=joining.protocols,
    )
    rebalance.watch_session(context, group, member)
    member.is_new = True
    if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    parked = joining.parked()
    context.park_join(group, member, parked)
    # The member cannot send heartbeats before it knows its id. If the client is gone, this timer removes the member.
    context.schedule(member.session, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance.prepare_or_complete(context, group)
    return parked


def _rejoin(context: Context, group: Group, member: Member, joining: Joining) -> Answer:
    """Handle a JoinGroup of an existing member: it joins or starts a rebalance, or asks again for a lost response."""
    if group.state is EMPTY:
        return join_error(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
    is_leader = group.is_leader(member.member_id)
    if group.state is COMPLETING_REBALANCE and member.offers(joining.protocols):
        return rebalance.joined(group, member.member_id, group.joined_members() if is_leader else [])
    if group.state is STABLE and member.offers(joining.protocols) and not is_leader:
        # Only the leader starts a rebalance by rejoining with the same protocols: it does so when topics have changed.
        return rebalance.joined(group, member.member_id, [])
    joining.update(group, member)
    parked = joining.parked()
    context.park_join(group, member, parked)
    rebalance.prepare_or_complete(context, group)
    return parked


def _replace_static(context: Context, group: Group, member: Member, joining: Joining, new_id: str) -> Answer:
    """A static member has restarted: replace its member id and fence the old one.

    If the group is stable and would select the same protocol, no rebalance is needed: the new id is stored with the old
    assignment.
    """
    old_id, leader = member.member_id, group.leader_id
    before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
    _fence(context, group, member)
    group.rename(member, new_id)
    context.extend_session(member)
    joining.update(group, member)
    parked = joining.parked()
    context.park_join(group, member, parked)
    if group.state is COMPLETING_REBALANCE:
        # The leader may already know the old id; its assignment would then lack the new one.
        rebalance.prepare(context, group)
    elif group.state is not STABLE or group.protocol_name != group.select_protocol():
        rebalance.prepare_or_complete(context, group)
    else:
        assignments = {one.member_id: one.assignment for one in group.members.values()}

        def on_failed(code: ErrorCode) -> None:
            refused = rebalance.joined(group, "", [], leader=leader)
            refused.error_code = code
            context.answer_join(group, member, refused)
            group.update(member, before[0], rebalance_timeout_ms=before[1], session_timeout_ms=before[2])
            group.rename(member, old_id)
            context.extend_session(member)

        context.store_group(
            group,
            group.as_value(assignments),
            on_appended=lambda: _answer_replaced(context, group, member, joining.caller.api_version, leader),
            on_failed=on_failed,
        )
    return parked


def _answer_replaced(context: Context, group: Group, member: Member, api_version: int, leader: str | None) -> None:
    """Answer the JoinGroup of a static member that has restarted.

    From v9 on, the response can tell a leader to skip the assignment. In older versions the response names the old id
    as leader, so that the member does not compute an assignment that the broker would ignore.
    """
    if api_version < SKIP_ASSIGNMENT_VERSION:
        answer = rebalance.joined(group, member.member_id, [], leader=leader)
    else:
        is_leader = group.is_leader(member.member_id)
        members = group.joined_members() if is_leader else []
        answer = rebalance.joined(group, member.member_id, members, skip_assignment=is_leader)
    context.answer_join(group, member, answer)


def _fence(context: Context, group: Group, member: Member) -> None:
    """Answer the parked requests of a static member's old id with FENCED_INSTANCE_ID."""
    fenced = join_error(ErrorCode.FENCED_INSTANCE_ID, member.member_id)
    context.answer_join(group, member, fenced)
    context.answer_sync(member, sync_error(ErrorCode.FENCED_INSTANCE_ID))
    member.is_new = False
