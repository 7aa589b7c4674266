"""SyncGroup: the leader sends the assignment; each member gets its own part once it is stored."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_THAT_NAMES_THE_PROTOCOL = 5


@handles(SyncGroupRequest, versions="0-5", authorize="READ group:{group_id}")
async def sync_group(request: SyncGroupRequest, broker: Broker, context: Context) -> SyncGroupResponse:
    """Wait until the leader's assignment is stored."""
    if context.api_version >= FIRST_VERSION_THAT_NAMES_THE_PROTOCOL and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b"")
    answer = await broker.groups.ask(request.group_id, request, context.caller, wait=context.wait)
    assert isinstance(answer, SyncGroupResponse)
    return answer
