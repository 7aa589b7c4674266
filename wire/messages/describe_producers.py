"""DescribeProducers: the producers that partitions know, with open transactions (KIP-664)."""

from wire.schema import message, struct
from wire.types import int16, int32, int64, string


@struct
class TopicRequest:
    name: string
    partition_indexes: list[int32]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    topics: list[TopicRequest]


@struct
class ProducerState:
    producer_id: int64
    producer_epoch: int32
    last_sequence: int32 = -1
    last_timestamp: int64 = -1
    coordinator_epoch: int32
    current_txn_start_offset: int64 = -1


@struct
class PartitionResponse:
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = None
    active_producers: list[ProducerState]


@struct
class TopicResponse:
    name: string
    partitions: list[PartitionResponse]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int32 = 0
    topics: list[TopicResponse]
