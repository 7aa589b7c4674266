"""AlterConfigs: replace all settings of resources; superseded by IncrementalAlterConfigs, still sent by librdkafka."""

from wire.messages.incremental_alter_configs import AlterConfigsResourceResponse
from wire.schema import message, struct
from wire.types import boolean, int8, int32, string


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


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int32 = 0
    responses: list[AlterConfigsResourceResponse]
