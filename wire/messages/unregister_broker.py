"""UnregisterBroker: remove a broker's registration from the metadata."""

from wire.schema import message
from wire.types import int16, int32, string


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: int32


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
