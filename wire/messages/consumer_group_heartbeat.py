"""ConsumerGroupHeartbeat: membership of a consumer group of the new protocol; null means unchanged (KIP-848)."""

from wire.schema import field, message, struct
from wire.types import int16, int32, string, uuid


@struct
class TopicPartitions:
    topic_id: uuid
    partitions: list[int32]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    group_id: string
    member_id: string
    member_epoch: int32
    instance_id: string | None = None
    rack_id: string | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: list[string] | None = None
    subscribed_topic_regex: string | None = field(versions="1+", default=None)
    server_assignor: string | None = None
    topic_partitions: list[TopicPartitions] | None = None


@struct
class Assignment:
    topic_partitions: list[TopicPartitions]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = None
    member_id: string | None = None
    member_epoch: int32
    heartbeat_interval_ms: int32
    assignment: Assignment | None = None
