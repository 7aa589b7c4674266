"""The answer to DescribeQuorum: the leader of the metadata log, its epoch, and how far voters and observers are.

The controller is the only voter and always the leader. Its listeners are those of its registration.

Source: KIP-595, KIP-836, KIP-853; Kafka's KafkaRaftClient.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.context import DEFAULT_MESSAGES, Context
from kbroker.controller.decisions import decides
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from wire.refusals import refused
from wire.types import ZERO_UUID

_FIRST_VERSION_WITH_DIRECTORIES: Final = 2


@decides(DescribeQuorumRequest, may_be_long=True)
def describe_quorum(context: Context, request: DescribeQuorumRequest) -> Outcome[DescribeQuorumResponse]:
    """Answer for partition 0 of the metadata log; any other partition fails the whole request as unknown."""
    asked = [
        (topic.topic_name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, 0)]:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer: DescribeQuorumResponse = refused(request, code, DEFAULT_MESSAGES[code])
        answer.error_code, answer.error_message = ErrorCode.NONE, ""
        return Outcome([], answer)
    image, now_ms, node_id = context.image, context.timestamp_ms, context.settings.node_id
    voter = ReplicaState(
        replica_id=node_id,
        replica_directory_id=ZERO_UUID
        if image.voters is None or context.version < _FIRST_VERSION_WITH_DIRECTORIES
        else image.voters.voters[0].voter_directory_id,
        log_end_offset=image.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = DescribeQuorumResponsePartitionData(
        partition_index=0,
        leader_id=node_id,
        leader_epoch=image.epoch,
        high_watermark=image.end_offset,
        current_voters=[voter],
        observers=[
            ReplicaState(
                replica_id=key.id,
                replica_directory_id=key.directory_id
                if context.version >= _FIRST_VERSION_WITH_DIRECTORIES
                else ZERO_UUID,
                log_end_offset=observer.end_offset,
                last_fetch_timestamp=observer.fetched_ms,
                last_caught_up_timestamp=observer.caught_up_ms,
            )
            for key, observer in context.observers.active(now_ms).items()
        ],
    )
    listeners = [Listener(name=one.name, host=one.host, port=one.port) for one in context.settings.listeners]
    response = DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])],
        nodes=[Node(node_id=node_id, listeners=listeners)]
        if context.version >= _FIRST_VERSION_WITH_DIRECTORIES
        else [],
    )
    return Outcome([], response)
