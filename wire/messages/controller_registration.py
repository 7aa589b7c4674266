"""ControllerRegistration: a controller reports its addresses and features to the quorum's leader (KIP-919)."""

from wire.schema import message, struct
from wire.types import boolean, int16, int32, string, uint16, uuid


@struct
class ControllerListener:
    name: string
    host: string
    port: uint16
    security_protocol: int16


@struct
class ControllerFeatureRange:
    name: string
    min_supported_version: int16
    max_supported_version: int16


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest:
    controller_id: int32
    incarnation_id: uuid
    zk_migration_ready: boolean
    listeners: list[ControllerListener]
    features: list[ControllerFeatureRange]


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = ""
