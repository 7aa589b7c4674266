"""ListTransactions: the transactions that this broker coordinates (KIP-664)."""

from wire.schema import field, message, struct
from wire.types import int16, int32, int64, string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[string]
    producer_id_filters: list[int64]
    duration_filter: int64 = field(versions="1+", default=-1)
    transactional_id_pattern: string | None = field(versions="2+", default=None)


@struct
class TransactionState:
    transactional_id: string
    producer_id: int64
    transaction_state: string


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    unknown_state_filters: list[string]
    transaction_states: list[TransactionState]
