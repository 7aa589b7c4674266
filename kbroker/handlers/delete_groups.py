"""DeleteGroups: delete empty groups and their offsets."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


@handles(DeleteGroupsRequest, versions="0-2")
async def delete_groups(request: DeleteGroupsRequest, broker: Broker, context: Context) -> DeleteGroupsResponse:
    """Delete each group independently of the others; duplicate names count once."""
    caller = context.caller
    results: list[DeletableGroupResult] = []
    for group_id in dict.fromkeys(request.groups_names):
        if broker.turns.due():
            await broker.turns.next()
        one = DeleteGroupsRequest(groups_names=[group_id])
        answer = await broker.groups.ask(group_id, one, caller, wait=context.wait)
        assert isinstance(answer, DeleteGroupsResponse)
        results += answer.results
    return DeleteGroupsResponse(results=results)
