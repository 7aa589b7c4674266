"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.coordinator.describing import GROUP_TYPE
from kbroker.coordinator.group import GroupState
from kbroker.handlers import Context, handles
from wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

STATES = {state.value.lower() for state in GroupState}


@handles(ListGroupsRequest, versions="0-5")
async def list_groups(request: ListGroupsRequest, broker: Broker, context: Context) -> ListGroupsResponse:
    """List the groups of all shards that pass the filters; fail while a shard is loading."""
    # Reduce the filters once: a request may have many thousands of names that match no state or type.
    states = {state.lower().strip() for state in request.states_filter} & STATES
    types = {name.lower().strip() for name in request.types_filter} & {GROUP_TYPE}
    if (request.states_filter and not states) or (request.types_filter and not types):
        return ListGroupsResponse(groups=[])
    groups: list[ListedGroup] = []
    for shard in list(broker.groups.shards()):
        if broker.turns.due():
            await broker.turns.next()
        groups += shard.list_groups(states)
    return ListGroupsResponse(groups=groups)
