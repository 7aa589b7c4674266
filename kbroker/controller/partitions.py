"""Decisions for CreatePartitions: the partition count of a topic can only grow; existing partitions do not change.

Source: Kafka's ControllerApis (duplicates) and ReplicationControlManager.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kbroker.controller import placement
from kbroker.controller.context import Context, TooManyRecords
from kbroker.controller.decisions import decides
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

FIRST_VERSION_WITH_STRICT_QUOTA: Final = 3


@decides(CreatePartitionsRequest, adds=True, may_be_long=True)
def create_partitions(context: Context, request: CreatePartitionsRequest) -> Outcome[CreatePartitionsResponse]:
    """Decide the new partitions of each topic.

    Per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS (not more than now), INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR, INVALID_REQUEST (duplicate topic), THROTTLING_QUOTA_EXCEEDED (from version 3).
    POLICY_VIOLATION for every topic if the whole request needs too many records (W11).
    """
    times = Counter(topic.name for topic in request.topics)
    results = [
        _result(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name, count in times.items()
        if count > 1
    ]
    records: list[Any] = []
    for topic in request.topics:
        if times[topic.name] > 1:
            continue
        try:
            grown = _grow(context, topic, records)
        except TooManyRecords as error:
            return Outcome([], CreatePartitionsResponse(results=[_result(name, error) for name in times]))
        except KafkaError as error:
            results.append(_result(topic.name, error))
        else:
            records += grown
            results.append(_result(topic.name, None))
    return Outcome([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE, error_message=None)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message or None)


def _grow(context: Context, request: CreatePartitionsTopic, records: list[Any]) -> list[Any]:
    topic = context.image.topics_by_name.get(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if (why := context.settings.undeletable_topics.get(topic.name)) is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, why)
    present = len(topic.partitions)
    if request.count == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if request.count < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {request.count} would not be an increase.",
        )
    more = request.count - present
    if request.assignments is not None and len(request.assignments) != more:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {more} additional partition(s), but only {len(request.assignments)} assignment(s) were "
            "specified.",
        )
    context.require_room(records, more)
    first = next(iter(topic.partitions.values())).replicas
    replication_factor = len(first)
    if request.assignments is None:
        brokers = placement.usable_brokers(context.image)
        placed = placement.place_replicas(
            brokers,
            start=placement.place_of(brokers, first[0]) + present,
            partitions=more,
            replication_factor=replication_factor,
        )
    else:
        placed = [tuple(assignment.broker_ids) for assignment in request.assignments]
        for replicas in placed:
            placement.check_manual_assignment(context.image, replicas, replication_factor)
    partitions = [
        placement.new_partition(context.image, index, replicas) for index, replicas in enumerate(placed, present)
    ]
    context.mutations.take(more, strict=context.version >= FIRST_VERSION_WITH_STRICT_QUOTA)
    return list(placement.partition_records(topic.id, present, partitions))
