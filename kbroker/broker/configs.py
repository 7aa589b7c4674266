"""Describes the settings of resources, and changes the levels of this process's loggers.

The settings of topics, brokers, groups and subscriptions come from the metadata image on top of the broker's own
settings; the controller changes them. A logger's level belongs to one process: it changes here at once, and is lost
when the process ends.

Source: ConfigHelper and ConfigAdminManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from kbroker.config import Settings
from kbroker.config.describe import (
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_logger,
    describe_topic,
)
from kbroker.controller.configs import Operation, check_keys, known_operation, parse_node_id
from kbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    Image,
)
from kbroker.metadata.names import topic_name_fault
from kbroker.metadata.parts import NODE_ID_DIGITS
from kbroker.runtime import event_log as logs
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import DescribeConfigsResourceResult
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)


def describe_resource(
    settings: Settings, image: Image, resource: tuple[int, str], *, node_id: int, keys: Collection[str] | None
) -> list[DescribeConfigsResourceResult]:
    """The settings of one resource, (type, name); keys None or empty means all.

    Errors  UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST
    """
    kind, name = resource
    configs = image.configs.get(resource, {})
    if kind == TOPIC_RESOURCE:
        if (fault := topic_name_fault(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name not in image.topics_by_name:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return describe_topic(settings, configs, keys=keys)
    if kind == GROUP_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(settings, configs, keys=keys)
    if kind == CLIENT_METRICS_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics(configs, keys=keys)
    if kind == BROKER_LOGGER_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_broker_id(name, node_id, expected=f"{node_id}")
        return [describe_logger(*one) for one in logs.levels().items() if not keys or one[0] in keys]
    if kind != BROKER_RESOURCE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
    if name:
        _check_broker_id(name, node_id, expected=f"{node_id} or empty string,")
    describe = describe_broker if name else describe_cluster_defaults
    return describe(settings, keys=keys)


def _check_broker_id(name: str, node_id: int, *, expected: str) -> None:
    digits = name.removeprefix("-")
    if not digits.isdecimal() or len(digits) > NODE_ID_DIGITS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} but received {name}")


def alter_loggers(
    resources: Iterable[AlterConfigsResource], *, node_id: int, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Change the levels of loggers; all changes of one resource are applied, or none.

    Per resource: INVALID_REQUEST, INVALID_CONFIG for an unknown logger or level.
    """
    resources = list(resources)
    times = Counter(resource.resource_name for resource in resources)
    answers = []
    for resource in resources:
        answer = AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if times[resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            levels = _wanted_levels(resource, node_id)
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.message
        else:
            if not validate_only:
                for name, level in levels.items():
                    logs.set_level(name, level)
        answers.append(answer)
    return answers


def _wanted_levels(resource: AlterConfigsResource, node_id: int) -> dict[str, str | None]:
    """Logger -> level that a resource requests; None means the parent logger's level."""
    name, changes = resource.resource_name, resource.configs
    check_keys(changes)
    if parse_node_id(name) != node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, but received {name}")
    known = logs.levels()
    return {change.name: _wanted_level(change, known) for change in changes}


def _wanted_level(change: AlterableConfig, known: Collection[str]) -> str | None:
    name, operation, level = change.name, known_operation(change.config_operation), change.value
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        text = f"{operation.name} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation is Operation.DELETE:
        if name == logs.ROOT:
            text = "Removing the log level of the root logger is not allowed"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        return None
    if level not in logs.LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(logs.LEVELS))}",
        )
    return level
