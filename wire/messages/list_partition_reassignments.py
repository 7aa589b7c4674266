"""ListPartitionReassignments: the reassignments in progress; topics None means all (KIP-455)."""

from wire.schema import message, struct
from wire.types import int16, int32, string


@struct
class ListPartitionReassignmentsTopics:
    name: string
    partition_indexes: list[int32]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    timeout_ms: int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@struct
class OngoingPartitionReassignment:
    partition_index: int32
    replicas: list[int32]
    adding_replicas: list[int32]
    removing_replicas: list[int32]


@struct
class OngoingTopicReassignment:
    name: string
    partitions: list[OngoingPartitionReassignment]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
    topics: list[OngoingTopicReassignment]
