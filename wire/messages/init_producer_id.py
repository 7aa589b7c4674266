"""InitProducerId: a producer id and epoch, for idempotent (transactional_id None) and transactional producers.

Kafka 4.3.1 holds version 6 back unless unstable APIs are enabled.
"""

from wire.schema import field, message
from wire.types import boolean, int16, int32, int64, string


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    transactional_id: string | None
    transaction_timeout_ms: int32
    producer_id: int64 = field(versions="3+", default=-1)
    producer_epoch: int16 = field(versions="3+", default=-1)
    enable_2pc: boolean = field(versions="6+", default=False)
    keep_prepared_txn: boolean = field(versions="6+", default=False)


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    producer_id: int64 = -1
    producer_epoch: int16
    ongoing_txn_producer_id: int64 = field(versions="6+", default=-1)
    ongoing_txn_producer_epoch: int16 = field(versions="6+", default=-1)
