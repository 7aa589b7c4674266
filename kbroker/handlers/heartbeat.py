"""Heartbeat: keeps the session of a classic group's member alive; the reply says whether a rebalance is in progress."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, versions="0-4", authorize="READ group:{group_id}")
async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse:
    """Renew the member's session."""
    answer = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    assert isinstance(answer, HeartbeatResponse)
    return answer
