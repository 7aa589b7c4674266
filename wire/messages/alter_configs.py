"""AlterConfigs: replace all settings of resources; superseded by IncrementalAlterConfigs, still sent by librdkafka."""

from wire.schema import message, struct
from wire.types import boolean, int8, int16, int32, string


@struct
class AlterableConfig:
    name: string
    value: string | None


@struct
class AlterConfigsResource:
    resource_type: int8
    resource_name: string
    configs: list[AlterableConfig]


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    resources: list[AlterConfigsResource]
    validate_only: boolean


@struct
class AlterConfigsResourceResponse:
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse]
