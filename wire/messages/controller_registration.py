"""ControllerRegistration: a controller reports its addresses and features to the quorum's leader (KIP-919)."""

from wire.messages.broker_registration import Endpoint, FeatureRange
from wire.schema import message
from wire.types import boolean, int16, int32, string, uuid


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest:
    controller_id: int32
    incarnation_id: uuid
    zk_migration_ready: boolean
    listeners: list[Endpoint]
    features: list[FeatureRange]


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = ""
