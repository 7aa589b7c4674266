"""CreatePartitions: increase the number of partitions of topics."""

from wire.schema import message, struct
from wire.types import boolean, int16, int32, string


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int32]


@struct
class CreatePartitionsTopic:
    name: string
    count: int32
    assignments: list[CreatePartitionsAssignment] | None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: boolean


@struct
class CreatePartitionsTopicResult:
    name: string
    error_code: int16 = 0
    error_message: string | None = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int32 = 0
    results: list[CreatePartitionsTopicResult]
