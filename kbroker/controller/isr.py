"""Decisions for AlterPartition: the in-sync replicas of a partition.

Only the controller changes an ISR. The leader proposes one, with the epochs that it knows, and the response contains
the result.

Source: Kafka's ReplicationControlManager.alterPartition; KIP-497, KIP-704 (recovery state), KIP-903 (broker epochs of
the members).
"""

from __future__ import annotations

from typing import Any

from kbroker.controller import election
from kbroker.controller.context import Context, check_broker_epoch
from kbroker.controller.decisions import decides
from kbroker.metadata.image import Image, PartitionImage, TopicImage
from kbroker.metadata.parts import RECOVERED, RECOVERING, changed_partition
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    BrokerState,
)
from wire.stored.metadata import PartitionChangeRecord


@decides(AlterPartitionRequest, may_be_long=True)
def alter_partition(context: Context, request: AlterPartitionRequest) -> Outcome[AlterPartitionResponse]:
    """Decide each proposed ISR. Raises STALE_BROKER_EPOCH for the whole request.

    Per partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER (the sender knows newer epochs than this
    controller), FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION, INVALID_REQUEST, INELIGIBLE_REPLICA; NEW_LEADER_ELECTED if
    the change was made but moved the leader, because it completed a reassignment.
    """
    check_broker_epoch(context.image, request.broker_id, request.broker_epoch)
    records: list[Any] = []
    answers = []
    for asked in request.topics:
        topic = context.image.topics_by_id.get(asked.topic_id)
        partitions = []
        for proposal in asked.partitions:
            try:
                partition, record = _alter(context, request.broker_id, topic, proposal)
                records += [] if record is None else [record]
                if partition.leader != request.broker_id:
                    raise KafkaError(ErrorCode.NEW_LEADER_ELECTED)
                partitions.append(_answer(proposal.partition_index, partition))
            except KafkaError as error:
                partitions.append(
                    AlterPartitionResponsePartition(partition_index=proposal.partition_index, error_code=error.code)
                )
        answers.append(AlterPartitionResponseTopic(topic_id=asked.topic_id, partitions=partitions))
    return Outcome(records, AlterPartitionResponse(topics=answers))


def _alter(
    context: Context, sender: int, topic: TopicImage | None, proposal: AlterPartitionRequestPartition
) -> tuple[PartitionImage, PartitionChangeRecord | None]:
    """The partition after the change, and the record of the change."""
    index = proposal.partition_index
    members = proposal.new_isr_with_epochs
    if context.version < 3:
        members = [BrokerState(broker_id=member) for member in proposal.new_isr]
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    before = topic.partitions.get(index)
    if before is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_epochs(sender, before, proposal)
    _check_members(context.image, before, proposal, members)
    record = election.plan_change(
        context,
        topic,
        index,
        election=election.allowed_election(context, topic.name),
        isr=[member.broker_id for member in members],
        leader_recovery_state=proposal.leader_recovery_state,
    )
    return (before if record is None else changed_partition(before, record)), record


def _answer(index: int, partition: PartitionImage) -> AlterPartitionResponsePartition:
    return AlterPartitionResponsePartition(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _check_epochs(sender: int, partition: PartitionImage, proposal: AlterPartitionRequestPartition) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    if proposal.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if sender != partition.leader:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if proposal.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)


def _check_members(
    image: Image, partition: PartitionImage, proposal: AlterPartitionRequestPartition, members: list[BrokerState]
) -> None:
    ids = [member.broker_id for member in members]
    if len(set(ids)) != len(ids) or not set(ids) <= set(partition.replicas) or partition.leader not in ids:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if proposal.leader_recovery_state == RECOVERING:
        if len(ids) > 1 or partition.leader_recovery_state == RECOVERED:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
    elif proposal.leader_recovery_state != RECOVERED:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    for member in members:
        broker = image.brokers.get(member.broker_id)
        if broker is None or not broker.active or member.broker_epoch not in {-1, broker.epoch}:
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)
