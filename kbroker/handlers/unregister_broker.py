"""UnregisterBroker: take a broker that is gone for good out of the metadata."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode, KafkaError
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(
    UnregisterBrokerRequest,
    versions="0",
    on_error=lambda request, code: UnregisterBrokerResponse(error_code=code, error_message=None),
)
async def unregister_broker(
    request: UnregisterBrokerRequest, broker: Broker, context: Context
) -> UnregisterBrokerResponse:
    """Have the controller decide, with its words for what is wrong."""
    try:
        await broker.unregister(request.broker_id)
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_code=ErrorCode.NONE, error_message="")
