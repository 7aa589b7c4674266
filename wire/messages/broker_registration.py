"""BrokerRegistration: a broker registers an incarnation with the controller (KIP-631)."""

from wire.schema import field, message, struct
from wire.types import boolean, int16, int32, int64, string, uint16, uuid


@struct
class Endpoint:
    """The advertised address of a listener, as registrations of brokers and controllers carry and store it."""

    name: string
    host: string
    port: uint16
    security_protocol: int16


@struct
class FeatureRange:
    """The supported levels of a feature, also in the requests and the stored records of both."""

    name: string
    min_supported_version: int16
    max_supported_version: int16


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest:
    broker_id: int32
    cluster_id: string
    incarnation_id: uuid
    listeners: list[Endpoint]
    features: list[FeatureRange]
    rack: string | None
    is_migrating_zk_broker: boolean = field(versions="1+", default=False)
    log_dirs: list[uuid] = field(versions="2+", default=[], ignorable=True)
    previous_broker_epoch: int64 = field(versions="3+", default=-1, ignorable=True)


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    broker_epoch: int64 = -1
