"""AlterReplicaLogDirs: move replicas between the log directories of one broker (KIP-113)."""

from wire.schema import message, struct
from wire.types import int16, int32, string


@struct
class AlterReplicaLogDirTopic:
    name: string
    partitions: list[int32]


@struct
class AlterReplicaLogDir:
    path: string
    topics: list[AlterReplicaLogDirTopic]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir]


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int32
    error_code: int16 = 0


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: string
    partitions: list[AlterReplicaLogDirPartitionResult]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int32 = 0
    results: list[AlterReplicaLogDirTopicResult]
