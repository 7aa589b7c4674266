"""ListConfigResources: names of resources that have settings; v0 lists client metrics subscriptions (KIP-1142)."""

from wire.schema import field, message, struct
from wire.types import int8, int16, int32, string


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: list[int8] = field(versions="1+", default=[])


@struct
class ConfigResource:
    resource_name: string
    resource_type: int8 = field(versions="1+", default=16, ignorable=True)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    config_resources: list[ConfigResource]
