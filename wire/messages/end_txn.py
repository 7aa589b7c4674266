"""EndTxn: commit or abort a transaction; v5 returns the producer's next id and epoch (KIP-890)."""

from wire.schema import field, message
from wire.types import boolean, int16, int32, int64, string


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    committed: boolean


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = field(versions="5+", default=-1, ignorable=True)
    producer_epoch: int16 = field(versions="5+", default=-1, ignorable=True)
