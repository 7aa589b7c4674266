"""AllocateProducerIds: a broker requests a block of producer ids from the controller (KIP-730)."""

from wire.schema import message
from wire.types import int16, int32, int64


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    broker_id: int32
    broker_epoch: int64 = -1


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id_start: int64 = 0
    producer_id_len: int32 = 0
