"""Describes the settings of resources: those in the metadata image, on top of the broker's own settings.

Source: ConfigHelper of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection

from kbroker.config import Settings
from kbroker.config.describe import (
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_logger,
    describe_topic,
)
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
