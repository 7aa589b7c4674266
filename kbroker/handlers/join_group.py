"""JoinGroup: join or rejoin a classic group; the reply waits for the rebalance."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse


@handles(JoinGroupRequest, versions="0-9", authorize="READ group:{group_id}")
async def join_group(request: JoinGroupRequest, broker: Broker, context: Context) -> JoinGroupResponse:
    """Wait until the group's next generation begins."""
    answer = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    assert isinstance(answer, JoinGroupResponse)
    return answer
