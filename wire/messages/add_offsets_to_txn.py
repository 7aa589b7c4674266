"""AddOffsetsToTxn: add a group's offsets partition to a transaction."""

from wire.schema import message
from wire.types import int16, int32, int64, string


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
