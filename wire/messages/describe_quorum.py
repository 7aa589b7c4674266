"""DescribeQuorum: leader, voters and observers of the metadata log (KIP-595, KIP-836, KIP-853)."""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int16, int32, int64, string, uint16, uuid


@struct
class DescribeQuorumRequestPartitionData:
    partition_index: int32


@struct
class DescribeQuorumRequestTopicData:
    topic_name: string
    partitions: list[DescribeQuorumRequestPartitionData]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: list[DescribeQuorumRequestTopicData]


@struct
class ReplicaState:
    replica_id: int32
    replica_directory_id: uuid = field(versions="2+", default=ZERO_UUID)
    log_end_offset: int64
    last_fetch_timestamp: int64 = field(versions="1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int64 = field(versions="1+", default=-1, ignorable=True)


@struct
class DescribeQuorumResponsePartitionData:
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = field(versions="2+", default="", ignorable=True)
    leader_id: int32
    leader_epoch: int32
    high_watermark: int64
    current_voters: list[ReplicaState]
    observers: list[ReplicaState]


@struct
class DescribeQuorumResponseTopicData:
    topic_name: string
    partitions: list[DescribeQuorumResponsePartitionData]


@struct
class Listener:
    name: string
    host: string
    port: uint16


@struct
class Node:
    node_id: int32
    listeners: list[Listener]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int16 = 0
    error_message: string | None = field(versions="2+", default="", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData]
    nodes: list[Node] = field(versions="2+", default=[])
