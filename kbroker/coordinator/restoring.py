"""Restore a group from its stored record.

The record contains only the selected protocol, so the group knows no other protocol until its members rejoin.
"""

from __future__ import annotations

from functools import partial

from kbroker.coordinator import rebalance
from kbroker.coordinator.context import Context
from kbroker.coordinator.group import EMPTY, STABLE
from kbroker.coordinator.member import Member
from wire.stored.groups import GroupMetadataValue


def restore_group(context: Context, group_id: str, value: GroupMetadataValue) -> None:
    """Replace the group in the table by the stored one."""
    known = context.groups.get(group_id)
    if known is not None:
        context.forget_group(known)
    group = rebalance.create_group(context, group_id)
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
        member.session.action = partial(rebalance.on_session_end, context, group, member)
        group.add(member)
