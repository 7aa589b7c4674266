"""AlterPartition: a leader asks the controller to change the in-sync replicas of its partitions (KIP-497, KIP-903)."""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int8, int16, int32, int64, uuid


@struct
class BrokerState:
    broker_id: int32 = field(versions="3+", default=0)
    broker_epoch: int64 = field(versions="3+", default=-1)


@struct
class AlterPartitionRequestPartition:
    partition_index: int32
    leader_epoch: int32
    new_isr: list[int32] = field(versions="0-2", default=[])
    new_isr_with_epochs: list[BrokerState] = field(versions="3+", default=[])
    leader_recovery_state: int8 = field(versions="1+", default=0)
    partition_epoch: int32


@struct
class AlterPartitionRequestTopic:
    topic_id: uuid = field(versions="2+", default=ZERO_UUID, ignorable=True)
    partitions: list[AlterPartitionRequestPartition]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    broker_id: int32
    broker_epoch: int64 = -1
    topics: list[AlterPartitionRequestTopic]


@struct
class AlterPartitionResponsePartition:
    partition_index: int32
    error_code: int16 = 0
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    isr: list[int32] = field(default=[])
    leader_recovery_state: int8 = field(versions="1+", default=0, ignorable=True)
    partition_epoch: int32 = 0


@struct
class AlterPartitionResponseTopic:
    topic_id: uuid = field(versions="2+", default=ZERO_UUID, ignorable=True)
    partitions: list[AlterPartitionResponsePartition]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    topics: list[AlterPartitionResponseTopic] = field(default=[])
