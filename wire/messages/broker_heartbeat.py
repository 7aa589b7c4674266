"""BrokerHeartbeat: a broker reports that it is alive and whether it wants to be unfenced or to shut down (KIP-631)."""

from wire.schema import field, message
from wire.types import boolean, int16, int32, int64, uuid


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest:
    broker_id: int32
    broker_epoch: int64 = -1
    current_metadata_offset: int64
    want_fence: boolean
    want_shut_down: boolean
    offline_log_dirs: list[uuid] = field(versions="1+", default=[], tag=0)
    cordoned_log_dirs: list[uuid] | None = field(versions="2+", default=None, tag=1)


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    is_caught_up: boolean = False
    is_fenced: boolean = True
    should_shut_down: boolean
