"""The phases of a rebalance: members join (PreparingRebalance), then get their assignments (CompletingRebalance).

Requests and three timers drive it. The session timer removes a silent member. The join timer ends PreparingRebalance
and removes dynamic members that have not joined; static members are removed only by their session timers. The sync
timer starts with a generation and removes members that have not sent SyncGroup.

An empty group waits `group.initial.rebalance.delay.ms` for more members before its first generation. The wait is
extended while new members join, but not beyond the rebalance timeout.

Source: GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.coordinator.context import Context
from kbroker.coordinator.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE, Group
from kbroker.coordinator.member import EMPTY_ASSIGNMENT, Member
from kbroker.coordinator.refusals import join_error, sync_error
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from wire.messages.sync_group import SyncGroupResponse
from wire.stored.groups import GroupMetadataValue

LEAST_WAIT_FOR_STATIC_MEMBERS_MS: Final = 1_000


def create_group(context: Context, group_id: str) -> Group:
    """Create an empty group."""
    group = context.groups[group_id] = new_group(context, group_id)
    return group


def new_group(context: Context, group_id: str) -> Group:
    """An empty group with its join and sync timers, which is not in the table."""
    group = Group(group_id, context.timestamp_ms)
    group.join.action = partial(on_join_time, context, group)
    group.sync.action = partial(on_sync_time, context, group)
    return group


def restore_group(context: Context, group_id: str, value: GroupMetadataValue) -> None:
    """Replace the group in the table by the stored one.

    The record contains only the selected protocol, so the group knows no other protocol until its members rejoin.
    """
    known = context.classic_group(group_id)
    if known is not None:
        context.forget_group(known)
    group = create_group(context, group_id)
    group.generation_id = max(0, value.generation)
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    # Brokers always store a member as the leader, but a tool may not.
    group.leader_id = next((one.member_id for one in value.members if one.member_id == value.leader), None)
    group.state_timestamp_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
    group.state = STABLE if value.members else EMPTY
    for stored in value.members:
        rebalance_timeout_ms = stored.rebalance_timeout
        member = Member(
            member_id=stored.member_id,
            group_instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.session_timeout if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout,
            protocols={value.protocol or "": stored.subscription},
            assignment=stored.assignment,
        )
        watch_session(context, group, member)
        group.add(member)


def watch_session(context: Context, group: Group, member: Member) -> None:
    """Remove the member when its session timer expires."""
    member.session.action = partial(on_session_end, context, group, member)


def prepare_or_complete(context: Context, group: Group) -> None:
    """Start a rebalance, or complete the current one if it waited only for this member."""
    if group.can_rebalance():
        prepare(context, group)
    else:
        complete_if_all_joined(context, group)


def prepare(context: Context, group: Group) -> None:
    """Start a rebalance: all members have to rejoin."""
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
    """Start the next generation if all members have joined. The first generation still waits for its initial delay."""
    if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_members_joined():
        complete(context, group)


def on_join_time(context: Context, group: Group) -> None:
    """The join timer expired: the time to join, or the initial delay, is over."""
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
    """Start the next generation with the members that have joined. Without members, the group becomes Empty and is
    stored.
    """
    context.timers.cancel(group.join)
    group.new_member_added = False
    late = [m for m in group.members.values() if m.awaiting_join is None and m.group_instance_id is None]
    for member in late:
        context.remove_member(group, member)
    if not group.elect_joined_leader() and group.members:
        # Only static members are left and none has joined: wait for their sessions. Their rebalance timeout may be 0,
        # so a minimum delay keeps this timer from firing in a loop.
        context.schedule(group.join, max(group.rebalance_timeout_ms(), LEAST_WAIT_FOR_STATIC_MEMBERS_MS))
        return
    group.begin_generation(timestamp_ms=context.timestamp_ms)
    if group.state is EMPTY:
        # If this append fails, a new coordinator loads the previous generation, and its members time out.
        context.store_group(group, group.as_value({}))
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
    """The JoinGroup response for a member of the current generation; the leader is the group's unless given."""
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
    """The sync timer expired: remove the members that have not sent SyncGroup and rebalance."""
    if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync:
        return
    for member_id in sorted(group.pending_sync):
        context.remove_member(group, group.members[member_id])
    prepare(context, group)


def on_session_end(context: Context, group: Group, member: Member) -> None:
    """A member's session timed out: remove it."""
    if group.members.get(member.member_id) is not member or member.has_satisfied_heartbeat():
        return
    context.remove_member(group, member)
    if group.state in (STABLE, COMPLETING_REBALANCE):
        prepare(context, group)
    elif group.state is PREPARING_REBALANCE and group.has_all_members_joined():
        complete(context, group)


def on_pending_end(context: Context, group: Group, member_id: str) -> None:
    """An assigned member id was not used in time: drop it."""
    take_pending(context, group, member_id)
    if group.state is PREPARING_REBALANCE and group.has_all_members_joined():
        complete(context, group)


def take_pending(context: Context, group: Group, member_id: str) -> None:
    """Drop an assigned member id that is used or no longer valid."""
    context.end_pending(group.pending_join.pop(member_id))


def reset_assignments(context: Context, group: Group, code: ErrorCode) -> None:
    """Clear the assignments of a generation that was not completed; answer parked SyncGroups with the code."""
    for member in group.members.values():
        member.assignment = EMPTY_ASSIGNMENT
        if context.answer_sync(member, sync_error(code)):
            context.extend_session(member)


def give_assignments(context: Context, group: Group, assignments: dict[str, bytes]) -> None:
    """Complete the generation: set the assignments and answer parked SyncGroups with them."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, EMPTY_ASSIGNMENT)
        if context.answer_sync(member, synced(group, member)):
            context.extend_session(member)
    group.transition(STABLE, timestamp_ms=context.timestamp_ms)
    context.counts.completed_rebalances += 1


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """The SyncGroup response with the member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def give_up_new_group(context: Context, group: Group, code: ErrorCode) -> None:
    """Remove a new group whose record could not be stored, and answer its parked JoinGroups with the code."""
    context.forget_group(group)
    for member in list(group.members.values()):
        context.answer_join(group, member, join_error(code))
