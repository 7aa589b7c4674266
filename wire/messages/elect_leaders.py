"""ElectLeaders: elect preferred or, uncleanly, any leaders; topic_partitions None means all (KIP-460)."""

from wire.schema import field, message, struct
from wire.types import int8, int16, int32, string


@struct
class TopicPartitions:
    topic: string
    partitions: list[int32]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: int8 = field(versions="1+", default=0)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: int32 = 60000


@struct
class PartitionResult:
    partition_id: int32
    error_code: int16 = 0
    error_message: string | None


@struct
class ReplicaElectionResult:
    topic: string
    partition_result: list[PartitionResult]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="1+", default=0)
    replica_election_results: list[ReplicaElectionResult]
