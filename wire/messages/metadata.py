"""Metadata: brokers, the controller, and the partitions of topics with their leaders.

topics: in v0 empty means all; from v1 on None means all and empty means none.
"""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, boolean, int16, int32, string, uuid


@struct
class MetadataRequestTopic:
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    name: string | None = field(nullable="10+")


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: boolean = field(versions="4+", default=True)
    include_cluster_authorized_operations: boolean = field(versions="8-10", default=False)
    include_topic_authorized_operations: boolean = field(versions="8+", default=False)


@struct
class MetadataResponseBroker:
    node_id: int32
    host: string
    port: int32
    rack: string | None = field(versions="1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    error_code: int16 = 0
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 = field(versions="7+", default=-1, ignorable=True)
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    offline_replicas: list[int32] = field(versions="5+", default=[], ignorable=True)


@struct
class MetadataResponseTopic:
    error_code: int16 = 0
    name: string | None = field(nullable="12+")
    topic_id: uuid = field(versions="10+", default=ZERO_UUID, ignorable=True)
    is_internal: boolean = field(versions="1+", default=False, ignorable=True)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: int32 = field(versions="8+", default=-0x80000000)


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int32 = field(versions="3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker]
    cluster_id: string | None = field(versions="2+", default=None, ignorable=True)
    controller_id: int32 = field(versions="1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: int32 = field(versions="8-10", default=-0x80000000)
    error_code: int16 = field(versions="13+", default=0, ignorable=True)
