"""DescribeClientQuotas: quotas of users and client ids; entries is None in an error (KIP-546)."""

from wire.schema import message, struct
from wire.types import boolean, float64, int8, int16, int32, string


@struct
class ComponentData:
    entity_type: string
    match_type: int8
    match: string | None


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: list[ComponentData]
    strict: boolean


@struct
class EntityData:
    entity_type: string
    entity_name: string | None


@struct
class ValueData:
    key: string
    value: float64


@struct
class EntryData:
    entity: list[EntityData]
    values: list[ValueData]


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
    entries: list[EntryData] | None
