"""ElectLeaders: elect the preferred leaders of partitions, or hold unclean elections."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse


@handles(ElectLeadersRequest, versions="0-2")
async def elect_leaders(request: ElectLeadersRequest, broker: Broker, context: Context) -> ElectLeadersResponse:
    """Ask the controller; reply once this broker knows the new leaders."""
    return await broker.controller.ask(request, ElectLeadersResponse)
