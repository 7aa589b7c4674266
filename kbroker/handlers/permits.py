"""What a client may change: splits a request to the controller into what is permitted and the refusals of the rest.

The controller gets only what is permitted. What a request names twice goes to the controller too, which refuses it
without a look at the resource.

Source: ControllerApis of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from kbroker.broker import Broker
from kbroker.handlers import Context
from kbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.security.authorizing import CLUSTER_NAME, Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_configs import AlterConfigsRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from wire.messages.create_topics import CreatableTopicResult, CreateTopicsRequest
from wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from wire.messages.incremental_alter_configs import AlterConfigsResourceResponse
from wire.types import ZERO_UUID

_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_OWNERS: Final = {
    TOPIC_RESOURCE: ResourceType.TOPIC,
    GROUP_RESOURCE: ResourceType.GROUP,
    BROKER_RESOURCE: ResourceType.CLUSTER,
    BROKER_LOGGER_RESOURCE: ResourceType.CLUSTER,
    CLIENT_METRICS_RESOURCE: ResourceType.CLUSTER,
}
"""The type of the resource that is authorized for the settings of a type of resource."""


def demand_settings(context: Context, operation: Operation, resource: Any) -> None:
    """Refuse to describe or change the settings of a resource, which has a resource_type and a resource_name.

    Unknown types have no settings: the caller refuses them.
    Errors  KafkaError with the code of the type
    """
    owner = _OWNERS.get(resource.resource_type)
    if owner is not None:
        context.demand(operation, owner, CLUSTER_NAME if owner is ResourceType.CLUSTER else resource.resource_name)


async def permit_settings(request: Any, broker: Broker, context: Context) -> tuple[Any, list[Any]]:
    """Permit an AlterConfigs or IncrementalAlterConfigs to a controller, whose loggers only nodes may change.

    The controller refuses unknown types, and loggers in an AlterConfigs, whatever the rights of the client.
    """
    permitted, refused = [], []
    is_legacy = isinstance(request, AlterConfigsRequest)
    times = Counter((one.resource_type, one.resource_name) for one in request.resources)
    for resource in request.resources:
        if broker.turns.due():
            await broker.turns.next()
        try:
            is_logger = resource.resource_type == BROKER_LOGGER_RESOURCE
            if times[resource.resource_type, resource.resource_name] == 1 and not (is_legacy and is_logger):
                demand_settings(context, Operation.CLUSTER_ACTION if is_logger else Operation.ALTER_CONFIGS, resource)
            permitted.append(resource)
        except KafkaError as error:
            answer = AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            refused.append(answer)
    return type(request)(resources=permitted, validate_only=request.validate_only), refused


async def permit_partitions(
    request: CreatePartitionsRequest, broker: Broker, context: Context
) -> tuple[CreatePartitionsRequest, list[Any]]:
    """Permit a CreatePartitions."""
    once = _once(topic.name for topic in request.topics)
    denied = await context.denied(Operation.ALTER, ResourceType.TOPIC, once, broker.turns)
    permitted = CreatePartitionsRequest(
        topics=[topic for topic in request.topics if topic.name not in denied],
        timeout_ms=request.timeout_ms,
        validate_only=request.validate_only,
    )
    return permitted, [
        CreatePartitionsTopicResult(name=name, error_code=_TOPIC_DENIED) for name in once if name in denied
    ]


async def permit_creations(
    request: CreateTopicsRequest, broker: Broker, context: Context
) -> tuple[CreateTopicsRequest, list[Any]]:
    """Permit a CreateTopics."""
    if context.may(Operation.CREATE, ResourceType.CLUSTER, is_logged=False):
        return request, []
    once = [name for name in _once(topic.name for topic in request.topics) if name != CLUSTER_METADATA_TOPIC]
    denied = await context.denied(Operation.CREATE, ResourceType.TOPIC, once, broker.turns)
    permitted = CreateTopicsRequest(
        topics=[topic for topic in request.topics if topic.name not in denied],
        timeout_ms=request.timeout_ms,
        validate_only=request.validate_only,
    )
    return permitted, [
        CreatableTopicResult(name=name, error_code=_TOPIC_DENIED, error_message="Authorization failed.")
        for name in once
        if name in denied
    ]


async def permit_deletions(
    request: DeleteTopicsRequest, broker: Broker, context: Context
) -> tuple[DeleteTopicsRequest, list[Any]]:
    """Permit a DeleteTopics.

    By id a client needs DELETE; by name also DESCRIBE, without which a name is refused before the broker looks for it.
    The refusal of an id has the name only if the client may describe the topic. A controller in another process checks
    the request again, so it gets ids and names that this node does not know yet. A controller in this process must not:
    it may be creating the topic just now.
    """
    if context.may(Operation.DELETE, ResourceType.CLUSTER, is_logged=False):
        return request, []
    is_decided_here = broker.controller.active_id == broker.node_id
    image, turns = broker.image, broker.turns
    names = _once([*request.topic_names, *(topic.name for topic in request.topics if _is_named(topic))])
    ids = _once(topic.topic_id for topic in request.topics if topic.name is None and topic.topic_id != ZERO_UUID)
    asked = {*names, *(topic.name for one in ids if (topic := image.topics_by_id.get(one)) is not None)}
    kept = await context.denied(Operation.DELETE, ResourceType.TOPIC, asked, turns)
    hidden = {
        *await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, kept, turns, is_logged=False),
        *await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, set(names) - kept, turns),
    }
    refused: dict[str | UUID, DeletableTopicResult] = {}
    for topic_id in ids:
        topic = image.topics_by_id.get(topic_id)
        if topic is None and is_decided_here:
            refused[topic_id] = _undeleted(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        elif topic is not None and topic.name in kept:
            refused[topic_id] = _undeleted(None if topic.name in hidden else topic.name, topic_id, _TOPIC_DENIED)
    for name in names:
        if name in hidden or (name in kept and name in image.topics_by_name):
            refused[name] = _undeleted(name, ZERO_UUID, _TOPIC_DENIED)
        elif name in kept and is_decided_here:
            refused[name] = _undeleted(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def is_permitted(topic: DeleteTopicState) -> bool:
        if topic.name is None:
            return topic.topic_id not in refused
        return not (_is_named(topic) and topic.name in refused)

    permitted = DeleteTopicsRequest(
        topics=[topic for topic in request.topics if is_permitted(topic)],
        topic_names=[name for name in request.topic_names if name not in refused],
        timeout_ms=request.timeout_ms,
    )
    return permitted, list(refused.values())


def _once(values: Iterable[Any]) -> list[Any]:
    """The values that occur once, in their order."""
    return [value for value, times in Counter(values).items() if times == 1]


def _is_named(topic: DeleteTopicState) -> bool:
    return topic.name is not None and topic.topic_id == ZERO_UUID


def _undeleted(name: str | None, topic_id: UUID, code: ErrorCode) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=None)
