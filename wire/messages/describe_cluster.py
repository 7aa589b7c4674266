"""DescribeCluster: brokers or controllers, the cluster id and the controller's id (KIP-700, KIP-919)."""

from wire.schema import field, message, struct
from wire.types import boolean, int8, int16, int32, string


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    include_cluster_authorized_operations: boolean
    endpoint_type: int8 = field(versions="1+", default=1)
    include_fenced_brokers: boolean = field(versions="2+", default=False)


@struct
class DescribeClusterBroker:
    broker_id: int32
    host: string
    port: int32
    rack: string | None = None
    is_fenced: boolean = field(versions="2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = None
    endpoint_type: int8 = field(versions="1+", default=1)
    cluster_id: string
    controller_id: int32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: int32 = -0x80000000
