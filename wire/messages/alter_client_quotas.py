"""AlterClientQuotas: set and remove quotas; an entity_name of None means the default entity (KIP-546)."""

from wire.messages.describe_client_quotas import EntityData
from wire.schema import message, struct
from wire.types import boolean, float64, int16, int32, string


@struct
class OpData:
    key: string
    value: float64
    remove: boolean


@struct
class AlterClientQuotasRequestEntryData:
    entity: list[EntityData]
    ops: list[OpData]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[AlterClientQuotasRequestEntryData]
    validate_only: boolean


@struct
class AlterClientQuotasResponseEntryData:
    error_code: int16 = 0
    error_message: string | None
    entity: list[EntityData]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: int32 = 0
    entries: list[AlterClientQuotasResponseEntryData]
