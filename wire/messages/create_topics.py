"""CreateTopics: create topics with a number of partitions or with given assignments.

num_partitions and replication_factor -1 mean the broker's default, and are required if assignments are given.
"""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, boolean, int8, int16, int32, string, uuid


@struct
class CreatableReplicaAssignment:
    partition_index: int32
    broker_ids: list[int32]


@struct
class CreatableTopicConfig:
    name: string
    value: string | None


@struct
class CreatableTopic:
    name: string
    num_partitions: int32
    replication_factor: int16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: list[CreatableTopic]
    timeout_ms: int32 = 60000
    validate_only: boolean = False


@struct
class CreatableTopicConfigs:
    name: string
    value: string | None
    read_only: boolean
    config_source: int8 = -1
    is_sensitive: boolean


@struct
class CreatableTopicResult:
    name: string
    topic_id: uuid = field(versions="7+", default=ZERO_UUID, ignorable=True)
    error_code: int16 = 0
    error_message: string | None
    topic_config_error_code: int16 = field(versions="5+", default=0, tag=0, ignorable=True)
    num_partitions: int32 = field(versions="5+", default=-1, ignorable=True)
    replication_factor: int16 = field(versions="5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(versions="5+", default=[], ignorable=True)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int32 = 0
    topics: list[CreatableTopicResult]
