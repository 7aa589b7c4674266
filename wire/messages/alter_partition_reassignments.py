"""AlterPartitionReassignments: start reassignments, or with replicas None cancel them (KIP-455)."""

from wire.schema import field, message, struct
from wire.types import boolean, int16, int32, string


@struct
class ReassignablePartition:
    partition_index: int32
    replicas: list[int32] | None = None


@struct
class ReassignableTopic:
    name: string
    partitions: list[ReassignablePartition]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    timeout_ms: int32 = 60000
    allow_replication_factor_change: boolean = field(versions="1+", default=True)
    topics: list[ReassignableTopic]


@struct
class ReassignablePartitionResponse:
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None


@struct
class ReassignableTopicResponse:
    name: string
    partitions: list[ReassignablePartitionResponse]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int32 = 0
    allow_replication_factor_change: boolean = field(versions="1+", default=True, ignorable=True)
    error_code: int16 = 0
    error_message: string | None
    responses: list[ReassignableTopicResponse]
