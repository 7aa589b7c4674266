"""AssignReplicasToDirs: a broker reports which of its log directories hold which replicas (KIP-858)."""

from wire.schema import message, struct
from wire.types import int16, int32, int64, uuid


@struct
class AssignedPartition:
    partition_index: int32


@struct
class AssignedTopic:
    topic_id: uuid
    partitions: list[AssignedPartition]


@struct
class AssignedDirectory:
    id: uuid
    topics: list[AssignedTopic]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    broker_id: int32
    broker_epoch: int64 = -1
    directories: list[AssignedDirectory]


@struct
class AssignedPartitionResponse:
    partition_index: int32
    error_code: int16 = 0


@struct
class AssignedTopicResponse:
    topic_id: uuid
    partitions: list[AssignedPartitionResponse]


@struct
class AssignedDirectoryResponse:
    id: uuid
    topics: list[AssignedTopicResponse]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    directories: list[AssignedDirectoryResponse]
