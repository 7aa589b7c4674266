"""The log directories of brokers: which replica is in which, and which are offline.

A replica can lead only if its directory is registered by its broker and online (election.py). Brokers with one
directory need no AssignReplicasToDirs, because the controller knows where their replicas are.

Source: KIP-858; Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kbroker.controller import election
from kbroker.controller.context import Context, check_broker_epoch
from kbroker.controller.decisions import decides
from kbroker.metadata.image import BrokerImage
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode
from wire.messages.assign_replicas_to_dirs import (
    AssignedDirectoryResponse,
    AssignedPartitionResponse,
    AssignedTopicResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from wire.stored.metadata import BrokerRegistrationChangeRecord


@decides(AssignReplicasToDirsRequest, may_be_long=True)
def assign_replicas_to_dirs(
    context: Context, request: AssignReplicasToDirsRequest
) -> Outcome[AssignReplicasToDirsResponse]:
    """Record the directories of a broker's replicas. A replica in an offline directory leaves the ISR.

    Raises STALE_BROKER_EPOCH. Per partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if
    the broker has no replica of it.
    """
    broker = check_broker_epoch(context.image, request.broker_id, request.broker_epoch)
    records: list[Any] = []
    offline: list[election.Place] = []
    directories = []
    for directory in request.directories:
        topics = []
        for asked in directory.topics:
            topic = context.image.topics_by_id.get(asked.topic_id)
            answers = []
            for index in (partition.partition_index for partition in asked.partitions):
                partition = None if topic is None else topic.partitions.get(index)
                code = ErrorCode.NONE
                if topic is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                elif partition is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif broker.id not in partition.replicas:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    record = election.plan_change(
                        context,
                        topic,
                        index,
                        election=election.Election.ONLINE,
                        directories={broker.id: directory.id},
                    )
                    records += [] if record is None else [record]
                    if not broker.has_online_directory(directory.id):
                        offline.append((topic, index, partition))
                answers.append(AssignedPartitionResponse(partition_index=index, error_code=code))
            topics.append(AssignedTopicResponse(topic_id=asked.topic_id, partitions=answers))
        directories.append(AssignedDirectoryResponse(id=directory.id, topics=topics))
    records += election.moves_away_from(context, broker.id, offline)
    return Outcome(records, AssignReplicasToDirsResponse(directories=directories))


def offline_directories(context: Context, broker: BrokerImage, reported: Sequence[UUID]) -> list[Any]:
    """The records for the directories that a broker reports as offline; none if they are known to be."""
    lost = set(broker.log_dirs).intersection(reported)
    if not lost:
        return []
    places = (place for place in election.partitions(context.image) if place[2].directory(broker.id) in lost)
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        log_dirs=[directory for directory in broker.log_dirs if directory not in lost],
    )
    return [*election.moves_away_from(context, broker.id, places), change]
