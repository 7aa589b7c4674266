"""DescribeConfigs: settings of topics, brokers and other resources, with their sources and synonyms.

configuration_keys: None and empty both mean all.
"""

from wire.schema import field, message, struct
from wire.types import boolean, int8, int16, int32, string


@struct
class DescribeConfigsResource:
    resource_type: int8
    resource_name: string
    configuration_keys: list[string] | None


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource]
    include_synonyms: boolean = False
    include_documentation: boolean = field(versions="3+", default=False)


@struct
class DescribeConfigsSynonym:
    name: string
    value: string | None
    source: int8


@struct
class DescribeConfigsResourceResult:
    name: string
    value: string | None
    read_only: boolean
    config_source: int8 = -1
    is_sensitive: boolean
    synonyms: list[DescribeConfigsSynonym]
    config_type: int8 = field(versions="3+", default=0, ignorable=True)
    documentation: string | None = field(versions="3+", default="", ignorable=True)


@struct
class DescribeConfigsResult:
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string
    configs: list[DescribeConfigsResourceResult]


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: int32 = 0
    results: list[DescribeConfigsResult]
