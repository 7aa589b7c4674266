"""LeaveGroup: remove members, so that their partitions are reassigned before their sessions time out."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.portions import PORTION
from kbroker.handlers import Context, handles
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse


@handles(LeaveGroupRequest, versions="0-5", authorize="READ group:{group_id}")
async def leave_group(request: LeaveGroupRequest, broker: Broker, context: Context) -> LeaveGroupResponse:
    """Remove each member independently of the others."""
    whole, members, caller = LeaveGroupResponse(members=[]), request.members, context.caller
    for start in range(0, max(1, len(members)), PORTION):  # runs once even without members, for the error
        if broker.turns.due(len(members[start : start + PORTION])):
            await broker.turns.next()
        request.members = members[start : start + PORTION]
        answer = await broker.groups.ask(request.group_id, request, caller, wait=context.wait)
        assert isinstance(answer, LeaveGroupResponse)
        if answer.error_code:
            return answer
        whole.members += answer.members
    return whole
