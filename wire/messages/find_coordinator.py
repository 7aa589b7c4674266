"""FindCoordinator: the coordinator of a group or of a transactional id, from v4 on of several at once."""

from wire.schema import field, message, struct
from wire.types import int8, int16, int32, string


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: string = field(versions="0-3", default="")
    key_type: int8 = field(versions="1+", default=0)
    coordinator_keys: list[string] = field(versions="4+", default=[])


@struct
class Coordinator:
    key: string
    node_id: int32
    host: string
    port: int32
    error_code: int16 = 0
    error_message: string | None


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    error_code: int16 = field(versions="0-3", default=0)
    error_message: string | None = field(versions="1-3", default="", ignorable=True)
    node_id: int32 = field(versions="0-3", default=0)
    host: string = field(versions="0-3", default="")
    port: int32 = field(versions="0-3", default=0)
    coordinators: list[Coordinator] = field(versions="4+", default=[])
