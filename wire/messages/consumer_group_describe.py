"""ConsumerGroupDescribe: state and members of consumer groups of the new protocol (KIP-848)."""

from wire.schema import field, message, struct
from wire.types import boolean, int8, int16, int32, string, uuid


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    group_ids: list[string]
    include_authorized_operations: boolean


@struct
class TopicPartitions:
    topic_id: uuid
    topic_name: string
    partitions: list[int32]


@struct
class Assignment:
    topic_partitions: list[TopicPartitions]


@struct
class Member:
    member_id: string
    instance_id: string | None = None
    rack_id: string | None = None
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = None
    assignment: Assignment
    target_assignment: Assignment
    member_type: int8 = field(versions="1+", default=-1, ignorable=True)


@struct
class DescribedGroup:
    error_code: int16 = 0
    error_message: string | None = None
    group_id: string
    group_state: string
    group_epoch: int32
    assignment_epoch: int32
    assignor_name: string
    members: list[Member]
    authorized_operations: int32 = -0x80000000


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup]
