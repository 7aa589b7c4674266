"""Decisions for AlterPartitionReassignments: move a partition to other replicas, or cancel such a move.

A reassignment first adds the new replicas to the partition's replicas. When they have joined the ISR, the leader's
AlterPartition removes the old ones (election.py). If no new replica has to catch up, one record does both.

A cancelled reassignment removes the replicas that it added. If the ISR has only these, the partition would be left with
a replica that lacks records; this is refused unless the topic allows unclean elections.

There is one difference from Kafka: a new target that includes a replica of which the removal is in progress keeps it.
Kafka 4.0 removes it, against KIP-455.

Source: KIP-455, KIP-860; Kafka's ReplicationControlManager, PartitionReassignmentReplicas, PartitionReassignmentRevert.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.controller.context import Context
from kbroker.controller.decisions import decides
from kbroker.controller.election import Assignment, Election, allowed_election, plan_change
from kbroker.controller.placement import check_manual_assignment
from kbroker.metadata.image import PartitionImage, TopicImage
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from wire.stored.metadata import PartitionChangeRecord


@decides(AlterPartitionReassignmentsRequest, may_be_long=True)
def alter_partition_reassignments(
    context: Context, request: AlterPartitionReassignmentsRequest
) -> Outcome[AlterPartitionReassignmentsResponse]:
    """Decide the replicas of each partition.

    Per partition: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS. POLICY_VIOLATION (raised) if the request needs too many records.
    """
    records: dict[tuple[str, int], PartitionChangeRecord] = {}
    responses = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=partition.partition_index, error_message=None)
            try:
                record = _reassign(context, topic.name, partition, request.allow_replication_factor_change)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message or None
            else:
                if record is not None:
                    records[topic.name, partition.partition_index] = record
                    context.require_room([], len(records))
            partitions.append(answer)
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return Outcome(
        list(records.values()),
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            # Kafka returns an empty message for an empty request, and null otherwise.
            error_message=None if request.topics else "",
            responses=responses,
        ),
    )


def _reassign(
    context: Context, name: str, asked: ReassignablePartition, may_change_count: bool
) -> PartitionChangeRecord | None:
    topic = context.image.topics_by_name.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        text = f"Unable to find partition {name}:{asked.partition_index}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if asked.replicas is None:
        return _cancel(context, topic, asked.partition_index)
    check_manual_assignment(context.image, asked.replicas, None)
    if not may_change_count:
        count = len(set(partition.replicas) - set(partition.removing_replicas))
        if len(asked.replicas) != count:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {count} to {len(asked.replicas)}",
            )
    return plan_change(
        context, topic, asked.partition_index, election=Election.ONLINE, assignment=_toward(partition, asked.replicas)
    )


def _toward(partition: PartitionImage, wanted: Sequence[int]) -> Assignment:
    """The assignment while the partition moves to the wanted replicas; they come first."""
    present = set(partition.replicas)
    removing = tuple(sorted(present.difference(wanted)))
    adding = tuple(sorted(set(wanted).difference(present.difference(partition.adding_replicas))))
    return Assignment((*wanted, *removing), removing, adding)


def _cancel(context: Context, topic: TopicImage, index: int) -> PartitionChangeRecord | None:
    partition = topic.partitions[index]
    adding = partition.adding_replicas
    if not adding and not partition.removing_replicas:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = tuple(replica for replica in partition.replicas if replica not in adding)
    isr = tuple(replica for replica in partition.isr if replica not in adding)
    if not replicas:
        text = "Invalid replica assignment: addingReplicas contains all replicas."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    election = allowed_election(context, topic.name)
    if not isr:
        if election is not Election.UNCLEAN:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
                "leader election.",
            )
        isr = replicas[:1]
    return plan_change(context, topic, index, election=election, isr=isr, assignment=Assignment(replicas))
