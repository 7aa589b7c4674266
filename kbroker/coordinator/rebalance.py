"""The phases of a rebalance: it is prepared while members join, completed when they have the assignment.

Three timers drive it besides requests. A session's end removes a member that was silent. The join timer ends the
preparation: who has not joined by then is out, but for static members, which their sessions alone remove. The sync
timer, set when a generation begins, removes who never asked for its assignment.

An empty group waits `group.initial.rebalance.delay.ms` for further members before its first generation, and as long
again while they keep coming, but never longer than the rebalance time-out.

Source: GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.context import Context
from kbroker.coordinator.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    Group,
)
from kbroker.coordinator.member import EMPTY_ASSIGNMENT, Member
from kbroker.coordinator.refusals import join_error, sync_error
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from wire.messages.sync_group import SyncGroupResponse

LEAST_WAIT_FOR_STATIC_MEMBERS_MS: Final = 1_000


def create_group(context: Context, group_id: str) -> Group:
    """A new, empty group, whose phases end by its timers."""
    return context.new_group(group_id, on_join=on_join_time, on_sync=on_sync_time)


def prepare_or_complete(context: Context, group: Group) -> None:
    """Begin a rebalance; if one is being prepared, see whether that was the member it waited for."""
    if group.can_rebalance():
        prepare(context, group)
    else:
        complete_if_all_joined(context, group)


def prepare(context: Context, group: Group) -> None:
    """Let all members join anew."""
    if group.state is COMPLETING_REBALANCE:
        reset_assignments(context, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    context.timers.cancel(group.sync)
    is_initial = group.state is EMPTY
    group.transition(PREPARING_REBALANCE, timestamp_ms=context.timestamp_ms)
    if is_initial:
        delay_ms = context.settings.group_initial_rebalance_delay_ms
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        context.schedule(group.join, delay_ms)
    elif group.has_all_members_joined():
        complete(context, group)
    else:
        context.schedule(group.join, group.rebalance_timeout_ms())


def complete_if_all_joined(context: Context, group: Group) -> None:
    """Begin the next generation if nobody is waited for; a first one waits for its delay."""
    if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_members_joined():
        complete(context, group)


def on_join_time(context: Context, group: Group) -> None:
    """The time to join is over, or the delay of a first rebalance."""
    if group.state is not PREPARING_REBALANCE:
        return
    if group.previous_state is EMPTY and group.new_member_added and group.initial_remaining_ms != 0:
        group.new_member_added = False
        delay_ms = min(context.settings.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        context.schedule(group.join, delay_ms)
    else:
        complete(context, group)


def complete(context: Context, group: Group) -> None:
    """Begin the next generation with those who have joined; without any member the group is empty, which is stored."""
    context.timers.cancel(group.join)
    group.new_member_added = False
    late = [m for m in group.members.values() if m.awaiting_join is None and m.group_instance_id is None]
    for member in late:
        context.remove_member(group, member)
    if not group.elect_joined_leader() and group.members:
        # Only static members are left, and none of them has come: their sessions decide. Their time-out may be nothing,
        # and then this would be due again at once, without end.
        context.schedule(group.join, max(group.rebalance_timeout_ms(), LEAST_WAIT_FOR_STATIC_MEMBERS_MS))
        return
    group.begin_generation(timestamp_ms=context.timestamp_ms)
    if group.state is EMPTY:
        # If this is never written, the generation before is what a new coordinator finds, and its members time out.
        context.store_group(group, group.as_value({}), on_appended=_go_on, on_failed=_do_without)
        return
    for member in group.members.values():
        members = group.joined_members() if group.is_leader(member.member_id) else []
        context.answer_join(group, member, joined(group, member.member_id, members))
        context.extend_session(member)
        member.is_new = False
    group.pending_sync.update(group.members)
    context.schedule(group.sync, group.rebalance_timeout_ms())


def joined(
    group: Group,
    member_id: str,
    members: list[JoinGroupResponseMember],
    *,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    """What a member is told of the generation that it is in; the leader is the group's unless another is named."""
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader if leader is not None else group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def on_sync_time(context: Context, group: Group) -> None:
    """The time to ask for the assignment is over: who did not is removed, and the others rebalance."""
    if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync:
        return
    for member_id in sorted(group.pending_sync):
        context.remove_member(group, group.members[member_id])
    prepare(context, group)


def on_session_end(context: Context, group: Group, member: Member) -> None:
    """A member was silent for too long."""
    if group.state is DEAD or group.members.get(member.member_id) is not member or member.has_satisfied_heartbeat():
        return
    context.remove_member(group, member)
    if group.state in (STABLE, COMPLETING_REBALANCE):
        prepare(context, group)
    elif group.state is PREPARING_REBALANCE and group.has_all_members_joined():
        complete(context, group)


def on_pending_end(context: Context, group: Group, member_id: str) -> None:
    """A member id that was handed out was not used."""
    if group.state is DEAD or (timer := group.pending_join.pop(member_id, None)) is None:
        return
    context.end_pending(timer)
    if group.state is PREPARING_REBALANCE and group.has_all_members_joined():
        complete(context, group)


def take_pending(context: Context, group: Group, member_id: str) -> None:
    """A member id that was handed out is used, or void."""
    context.end_pending(group.pending_join.pop(member_id))


def reset_assignments(context: Context, group: Group, code: ErrorCode) -> None:
    """Forget the assignment of a generation that did not come about; who waits for it is told so."""
    for member in group.members.values():
        member.assignment = EMPTY_ASSIGNMENT
        if context.answer_sync(member, sync_error(code)):
            context.extend_session(member)


def give_assignments(context: Context, group: Group, assignments: dict[str, bytes]) -> None:
    """The generation is complete: everybody who waits gets its part."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, EMPTY_ASSIGNMENT)
        if context.answer_sync(member, synced(group, member)):
            context.extend_session(member)
    group.transition(STABLE, timestamp_ms=context.timestamp_ms)
    context.counts.completed_rebalances += 1


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """What a member is told of its part."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def give_up_new_group(context: Context, group: Group, code: ErrorCode) -> None:
    """A group that could not be stored never was; who joined it is told why."""
    context.forget_group(group)
    for member in list(group.members.values()):
        context.answer_join(group, member, join_error(code))


def _go_on() -> None:
    pass


def _do_without(code: ErrorCode) -> None:
    del code
