"""The records of `__transaction_state`; key and value each start with a version (int16) that is not part of these
bodies.
"""

from wire.schema import field, stored, struct
from wire.types import int8, int16, int32, int64, string


@stored(record_type=0, versions="0", flexible="none")
class TransactionLogKey:
    transactional_id: string


@struct
class PartitionsSchema:
    topic: string
    partition_ids: list[int32]


@stored(record_type=0, versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: int64
    previous_producer_id: int64 = field(versions="1+", default=-1, tag=0)
    next_producer_id: int64 = field(versions="1+", default=-1, tag=1)
    producer_epoch: int16
    next_producer_epoch: int16 = field(versions="1+", default=-1, tag=3)
    transaction_timeout_ms: int32
    transaction_status: int8
    transaction_partitions: list[PartitionsSchema] | None
    transaction_last_update_timestamp_ms: int64
    transaction_start_timestamp_ms: int64
    client_transaction_version: int16 = field(versions="1+", default=0, tag=2)
