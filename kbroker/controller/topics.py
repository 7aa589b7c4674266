"""Decisions for CreateTopics and DeleteTopics.

A request names many topics. Each succeeds or fails independently, and the records of those that succeed become visible
together. The order of the checks and the messages are Kafka's, because clients and their tests depend on both. One
check goes beyond Kafka: two new names in one request that collide ("a.b" and "a_b") are not both created.

Source: Kafka's ControllerApis (duplicates) and ReplicationControlManager (everything else).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from kbroker.config.topic import ATTACHED_LEADER_EPOCH
from kbroker.controller import placement
from kbroker.controller.context import Context, TooManyRecords, error_text
from kbroker.controller.decisions import decides
from kbroker.metadata.image import TOPIC_RESOURCE, Image, PartitionImage, TopicImage
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC, collision_key, topic_name_fault
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from wire.stored.metadata import ConfigRecord, RemoveTopicRecord, TopicRecord
from wire.types import ZERO_UUID

FIRST_CREATION_WITH_STRICT_QUOTA: Final = 6
FIRST_DELETION_WITH_STRICT_QUOTA: Final = 5
_FEW: Final = 20
"""With so many topics, partitions and settings a decision takes less than a millisecond."""


def _creates_many(request: CreateTopicsRequest) -> bool:
    size = 0
    for topic in request.topics:
        # Without a number the topic has num.partitions, which may be any.
        partitions = len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else _FEW + 1)
        size += partitions + len(topic.configs)
        if size > _FEW:
            return True  # before anything of a large request is looked at
        size += sum(len(one.broker_ids) for one in topic.assignments)
    return size > _FEW


def _deletes_many(request: DeleteTopicsRequest) -> bool:
    return len(request.topic_names) + len(request.topics) > _FEW


@decides(CreateTopicsRequest, adds=True, may_be_long=_creates_many)
def create_topics(context: Context, request: CreateTopicsRequest) -> Outcome[CreateTopicsResponse]:
    """Decide which of the topics to create. With validate_only nothing is recorded, but the response is the same.

    Per topic: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
    INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED (from version 6).
    POLICY_VIOLATION for every topic if the whole request needs too many records (W11).
    """
    times = Counter(topic.name for topic in request.topics)
    records: list[Any] = []
    results: list[CreatableTopicResult] = []
    rejected: list[CreatableTopicResult] = []
    taken: dict[str, str] = {}
    try:
        wanted = sum(len(topic.assignments) if topic.assignments else topic.num_partitions for topic in request.topics)
        if wanted > context.settings.max_records_per_decision:
            raise TooManyRecords("Excessively large number of partitions per request.")
        for topic in request.topics:
            if times[topic.name] > 1:
                continue
            if topic.name == CLUSTER_METADATA_TOPIC:
                text = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
                rejected.append(_failed(topic.name, KafkaError(ErrorCode.INVALID_REQUEST, text)))
                continue
            start = len(context.image.topics_by_name) + len(results)
            results.append(_create_topic(context, topic, records, taken, start))
    except TooManyRecords as error:
        return Outcome([], CreateTopicsResponse(topics=[_failed(name, error) for name in times]))
    duplicates = [name for name, count in times.items() if count > 1]
    results += [_failed(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")) for name in duplicates]
    return Outcome([] if request.validate_only else records, CreateTopicsResponse(topics=results + rejected))


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error_text(error))


def _create_topic(
    context: Context, topic: CreatableTopic, records: list[Any], taken: dict[str, str], start: int
) -> CreatableTopicResult:
    """Add the topic's records, or return an error result; `start` is the place of the first leader (placement.py).

    Raises TooManyRecords, which fails the whole request.
    """
    try:
        _check_name(context.image, topic.name, taken)
        configs = _check_configs(context, topic)
        partitions = _new_partitions(context, topic, records, start, configs_count=len(configs))
        if ATTACHED_LEADER_EPOCH in configs:  # the history of the attached segments goes on in a later epoch
            first_epoch = int(configs[ATTACHED_LEADER_EPOCH]) + 1
            partitions = [partition._replace(leader_epoch=first_epoch) for partition in partitions]
        context.require_room(records, 1 + len(configs) + len(partitions))
        context.mutations.take(len(partitions), strict=context.version >= FIRST_CREATION_WITH_STRICT_QUOTA)
    except TooManyRecords:
        raise
    except KafkaError as error:
        return _failed(topic.name, error)
    key = collision_key(topic.name)
    if key is not None:
        taken[key] = topic.name
    topic_id = new_topic_id(context)
    records.append(TopicRecord(name=topic.name, topic_id=topic_id))
    # Configs come before the partitions, so that readers of a new partition already know its settings.
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in configs.items()
    ]
    records += placement.partition_records(topic_id, 0, partitions)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=config.name,
                value=None if config.is_sensitive else config.value,
                read_only=config.read_only,
                config_source=config.config_source,
                is_sensitive=config.is_sensitive,
            )
            for config in context.rules.describe_topic(configs, context.image)
        ],
    )


def new_topic_id(context: Context) -> UUID:
    """A new topic id. Reserved ids are not used, nor ids whose text starts with "-", which command-line tools read as a
    flag.
    """
    while True:
        topic_id = context.new_uuid()
        if topic_id.int > 0xFF and topic_id.bytes[0] >> 2 != 62 and topic_id not in context.image.topics_by_id:
            return topic_id


def _check_name(image: Image, name: str, taken: Mapping[str, str]) -> None:
    if name in image.topics_by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    fault = topic_name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    key = collision_key(name)
    if key is None:
        return
    length = len(name)
    for other in image.topics_by_name:
        if len(other) == length and other.replace(".", "_") == key:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")
    if key in taken:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with another topic in the request: {taken[key]}",
        )


def _check_configs(context: Context, topic: CreatableTopic) -> dict[str, str]:
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    configs = {config.name: config.value for config in topic.configs if config.value is not None}
    if configs:
        context.check_topic(topic.name, configs, {})
    return configs


def _new_partitions(
    context: Context, topic: CreatableTopic, records: list[Any], start: int, *, configs_count: int
) -> list[PartitionImage]:
    if topic.assignments:
        return _assigned_partitions(context, topic)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = context.settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    replication_factor = (
        context.settings.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    brokers = placement.usable_brokers(context.image)
    if brokers and replication_factor <= len(brokers):
        context.require_room(records, 1 + configs_count + count)  # before a loop whose length the client chooses
    try:
        placed = placement.place_replicas(brokers, start=start, partitions=count, replication_factor=replication_factor)
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {error.message}",
        ) from None
    return [placement.new_partition(context.image, index, replicas) for index, replicas in enumerate(placed)]


def _assigned_partitions(context: Context, topic: CreatableTopic) -> list[PartitionImage]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    partitions: dict[int, PartitionImage] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in partitions:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        placement.check_manual_assignment(context.image, assignment.broker_ids, replication_factor)
        replication_factor = len(assignment.broker_ids)
        partitions[index] = placement.new_partition(context.image, index, assignment.broker_ids)
    if set(partitions) != set(range(len(partitions))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [partitions[index] for index in range(len(partitions))]


@decides(DeleteTopicsRequest, may_be_long=_deletes_many)
def delete_topics(context: Context, request: DeleteTopicsRequest) -> Outcome[DeleteTopicsResponse]:
    """Decide which topics to delete; they are given by name (up to version 5), or by name or id.

    Per topic: UNKNOWN_TOPIC_OR_PARTITION (name), UNKNOWN_TOPIC_ID, INVALID_REQUEST (given twice, by both name and id,
    or by neither), TOPIC_DELETION_DISABLED (INVALID_REQUEST before version 3; also for a topic that the broker depends
    on), THROTTLING_QUOTA_EXCEEDED (from version 5).
    """
    named: list[tuple[str | None, UUID]] = [(name, ZERO_UUID) for name in request.topic_names]
    named += [(topic.name, topic.topic_id) for topic in request.topics]
    code = ErrorCode.INVALID_REQUEST if context.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
    if not context.settings.delete_topic_enable:
        disabled = KafkaError(code, "Topic deletion is disabled.")
        return Outcome(
            [], DeleteTopicsResponse(responses=[_undeleted(name, topic_id, disabled) for name, topic_id in named])
        )
    responses: list[DeletableTopicResult] = []
    doomed = _resolve(context.image, named, responses)
    for topic in [one for one in doomed if one.name in context.settings.undeletable_topics]:
        doomed.remove(topic)
        why = KafkaError(code, context.settings.undeletable_topics[topic.name])
        responses.append(_undeleted(topic.name, topic.id, why))
    try:
        context.require_room([], len(doomed))
    except TooManyRecords as error:
        responses += [_undeleted(topic.name, topic.id, error) for topic in doomed]
        return Outcome([], DeleteTopicsResponse(responses=responses))
    records = []
    for topic in doomed:
        try:
            context.mutations.take(len(topic.partitions), strict=context.version >= FIRST_DELETION_WITH_STRICT_QUOTA)
        except KafkaError as error:
            responses.append(_undeleted(topic.name, topic.id, error))
        else:
            records.append(RemoveTopicRecord(topic_id=topic.id))
            responses.append(DeletableTopicResult(name=topic.name, topic_id=topic.id, error_code=ErrorCode.NONE))
    return Outcome(records, DeleteTopicsResponse(responses=responses))


def _undeleted(name: str | None, topic_id: UUID, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error_text(error))


def _resolve(
    image: Image, named: list[tuple[str | None, UUID]], responses: list[DeletableTopicResult]
) -> list[TopicImage]:
    """The topics to delete, without duplicates; errors are added to responses."""

    def refuse(name: str | None, topic_id: UUID, code: ErrorCode, text: str = "") -> None:
        responses.append(_undeleted(name, topic_id, KafkaError(code, text)))

    names: Counter[str] = Counter()
    ids: Counter[UUID] = Counter()
    for name, topic_id in named:
        if name is None and topic_id == ZERO_UUID:
            refuse(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        elif name is None:
            ids[topic_id] += 1
        elif topic_id == ZERO_UUID:
            names[name] += 1
        else:
            refuse(name, topic_id, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")

    doomed: dict[UUID, TopicImage] = {}
    for topic_id, times in ids.items():
        topic = image.topics_by_id.get(topic_id)
        if times > 1:
            refuse(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        elif topic is None:
            refuse(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            doomed[topic_id] = topic
    for name, times in names.items():
        topic = image.topics_by_name.get(name)
        if times > 1:
            refuse(name, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif topic is None:
            refuse(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif ids[topic.id]:
            doomed.pop(topic.id, None)
            refuse(
                name,
                topic.id,
                ErrorCode.INVALID_REQUEST,
                "The provided topic name maps to an ID that was already supplied.",
            )
        else:
            doomed[topic.id] = topic
    return list(doomed.values())
