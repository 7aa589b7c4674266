"""LeaveGroup: members go, so that their partitions are given to others without waiting for their sessions to end."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.callers import caller_of
from kbroker.handlers import Context, handles
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse


@handles(LeaveGroupRequest, versions="0-5", authorize="READ group:{group_id}")
async def leave_group(request: LeaveGroupRequest, broker: Broker, context: Context) -> LeaveGroupResponse:
    """Remove the members, each by itself."""
    answer = await broker.groups.ask(request.group_id, request, caller_of(context), wait=context.wait)
    assert isinstance(answer, LeaveGroupResponse)
    return answer
