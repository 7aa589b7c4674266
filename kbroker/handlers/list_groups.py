"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


@handles(ListGroupsRequest, versions="0-5")
async def list_groups(request: ListGroupsRequest, broker: Broker, context: Context) -> ListGroupsResponse:
    """Those of all shards that pass the filters; while one is being loaded nothing is listed."""
    shards = list(broker.groups.shards())
    groups = [group for shard in shards for group in shard.list_groups(request.states_filter, request.types_filter)]
    return ListGroupsResponse(groups=groups)
