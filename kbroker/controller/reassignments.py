"""Decisions for AlterPartitionReassignments.

There is only one broker so far, so no replica can move. Such a request is refused with Kafka's error code for unknown
brokers. A request for the current replicas of a partition is accepted and changes nothing.

Source: KIP-455, KIP-860; Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from kbroker.controller.context import Context
from kbroker.controller.decisions import decides
from kbroker.controller.placement import check_manual_assignment
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@decides(AlterPartitionReassignmentsRequest, may_be_long=True)
def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> Outcome[AlterPartitionReassignmentsResponse]:
    """Decide the replicas of each partition.

    Per partition: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS.
    """
    responses = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=partition.partition_index, error_message=None)
            try:
                _check(context, topic.name, partition, may_change_count=request.allow_replication_factor_change)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message or None
            partitions.append(answer)
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return Outcome(
        [],
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            # Kafka returns an empty message for an empty request, and null otherwise.
            error_message=None if request.topics else "",
            responses=responses,
        ),
    )


def _check(context: Context, name: str, asked: ReassignablePartition, *, may_change_count: bool) -> None:
    topic = context.image.topics_by_name.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        text = f"Unable to find partition {name}:{asked.partition_index}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if asked.replicas is None:
        if not partition.adding_replicas and not partition.removing_replicas:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    else:
        check_manual_assignment(context.image, asked.replicas, None)
        if not may_change_count and len(asked.replicas) != len(partition.replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(partition.replicas)} to {len(asked.replicas)}",
            )
        if tuple(asked.replicas) == partition.replicas:
            return
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Moving replicas between brokers is not implemented yet.")
