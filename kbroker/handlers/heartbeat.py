"""Heartbeat: a member of a classic group is alive, and learns whether a rebalance waits for it."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.callers import caller_of
from kbroker.handlers import Context, handles
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, versions="0-4", authorize="READ group:{group_id}")
async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse:
    """Let the member's session go on."""
    answer = await broker.groups.ask(request.group_id, request, caller_of(context), wait=context.wait)
    assert isinstance(answer, HeartbeatResponse)
    return answer
