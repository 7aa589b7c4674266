"""DescribeQuorum: the leader of the metadata log, its epoch, and the log end offsets of the voters.

The quorum is the controller in this process. It is the only voter and always the leader. It has no listener of its own,
so the response has no listeners.
"""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from wire.errors import ErrorCode
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Node,
    ReplicaState,
)
from wire.refusals import refused


@handles(DescribeQuorumRequest, versions="0-2")
async def describe_quorum(request: DescribeQuorumRequest, broker: Broker, context: Context) -> DescribeQuorumResponse:
    """Answer for partition 0 of the metadata log; any other partition fails the whole request as unknown."""
    asked = [
        (topic.topic_name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, 0)]:
        return await broker.env.run_blocking(_unknown, request) if context.is_large else _unknown(request)
    image = broker.image
    now_ms = broker.env.timestamp_ms()
    voter = ReplicaState(
        replica_id=broker.node_id,
        log_end_offset=image.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = DescribeQuorumResponsePartitionData(
        partition_index=0,
        leader_id=broker.node_id,
        leader_epoch=image.epoch,
        high_watermark=image.end_offset,
        current_voters=[voter],
        observers=[],
    )
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
        nodes=[Node(node_id=broker.node_id, listeners=[])] if context.api_version >= 2 else [],
    )


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    answer: DescribeQuorumResponse = refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer.error_code = ErrorCode.NONE
    return answer
