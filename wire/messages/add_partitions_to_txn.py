"""AddPartitionsToTxn: add partitions to a transaction (v0-3, clients) or verify them in batches (v4+, brokers;
KIP-890).
"""

from wire.schema import field, message, struct
from wire.types import boolean, int16, int32, int64, string


@struct
class AddPartitionsToTxnTopic:
    name: string
    partitions: list[int32]


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    verify_only: boolean = False
    topics: list[AddPartitionsToTxnTopic]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = field(versions="4+", default=[])
    v3_and_below_transactional_id: string = field(versions="0-3", default="")
    v3_and_below_producer_id: int64 = field(versions="0-3", default=0)
    v3_and_below_producer_epoch: int16 = field(versions="0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(versions="0-3", default=[])


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int32
    partition_error_code: int16


@struct
class AddPartitionsToTxnTopicResult:
    name: string
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


@struct
class AddPartitionsToTxnResult:
    transactional_id: string
    topic_results: list[AddPartitionsToTxnTopicResult]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(versions="4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(versions="0-3", default=[])
