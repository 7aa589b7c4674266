"""JoinGroup: join or rejoin a classic group; the reply waits for the rebalance."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.callers import caller_of
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse


def _refused(request: JoinGroupRequest, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name="", leader="", member_id="", members=[])


@handles(JoinGroupRequest, versions="0-9", authorize="READ group:{group_id}", on_error=_refused)
async def join_group(request: JoinGroupRequest, broker: Broker, context: Context) -> JoinGroupResponse:
    """Wait until the group's next generation begins."""
    answer = await broker.groups.ask(request.group_id, request, caller_of(context), wait=context.wait)
    assert isinstance(answer, JoinGroupResponse)
    return answer
