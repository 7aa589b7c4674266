"""UnregisterBroker: remove a broker that is gone permanently from the metadata."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode, KafkaError
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(UnregisterBrokerRequest, versions="0")
async def unregister_broker(
    request: UnregisterBrokerRequest, broker: Broker, context: Context
) -> UnregisterBrokerResponse:
    """Ask the controller; the reply has its error message."""
    try:
        await broker.unregister(request.broker_id)
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_code=ErrorCode.NONE, error_message="")
