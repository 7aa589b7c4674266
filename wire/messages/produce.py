"""Produce: append record batches to partitions.

Versions 0-2 are advertised, because librdkafka below 2.12 disables compression without them, but their bodies are not
declared: the server closes the connection, as Kafka does (KAFKA-18659). throttle_time_ms follows the responses.
"""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int16, int32, int64, records, string, uuid


@struct
class PartitionProduceData:
    index: int32
    records: records | None


@struct
class TopicProduceData:
    name: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData]


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    transactional_id: string | None = None
    acks: int16
    timeout_ms: int32
    topic_data: list[TopicProduceData]


@struct
class BatchIndexAndErrorMessage:
    batch_index: int32
    batch_index_error_message: string | None = None


@struct
class LeaderIdAndEpoch:
    leader_id: int32 = -1
    leader_epoch: int32 = -1


@struct
class PartitionProduceResponse:
    index: int32
    error_code: int16 = 0
    base_offset: int64
    log_append_time_ms: int64 = -1
    log_start_offset: int64 = field(versions="5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(versions="8+", default=[], ignorable=True)
    error_message: string | None = field(versions="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = field(versions="10+", nullable="none", default=None, tag=0)


@struct
class TopicProduceResponse:
    name: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse]


@struct
class NodeEndpoint:
    node_id: int32
    host: string
    port: int32
    rack: string | None = None


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    responses: list[TopicProduceResponse]
    throttle_time_ms: int32 = 0
    node_endpoints: list[NodeEndpoint] = field(versions="10+", default=[], tag=0)
