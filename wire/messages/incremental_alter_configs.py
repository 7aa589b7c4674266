"""IncrementalAlterConfigs: set, delete, append to and subtract from settings (KIP-339)."""

from wire.schema import message, struct
from wire.types import boolean, int8, int16, int32, string


@struct
class AlterableConfig:
    name: string
    config_operation: int8
    value: string | None


@struct
class AlterConfigsResource:
    resource_type: int8
    resource_name: string
    configs: list[AlterableConfig]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource]
    validate_only: boolean


@struct
class AlterConfigsResourceResponse:
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse]
