"""UnregisterBroker: remove a broker that is gone permanently from the metadata."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(UnregisterBrokerRequest, versions="0")
async def unregister_broker(
    request: UnregisterBrokerRequest, broker: Broker, context: Context
) -> UnregisterBrokerResponse:
    """Ask the controller."""
    return await broker.controller.ask(request, UnregisterBrokerResponse)
