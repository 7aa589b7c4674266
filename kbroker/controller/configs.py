"""Decisions for IncrementalAlterConfigs and AlterConfigs.

The changes of one resource are applied all together or not at all; the resources of a request are independent. Topics
must exist; groups and client metrics subscriptions need not. A broker resource is named by the id of a broker or a
controller; "" means the defaults of the whole cluster. Changes of a broker resource are recorded even if the value
stays the same, because the record makes brokers reload files that a setting names.

Source: Kafka's ConfigurationControlManager, and the checks of its ConfigAdminManager, for requests that reach a
controller without a broker. What a broker checks before it asks is in kbroker/broker/config_changes.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

from kbroker.config.rules import ConfigRules
from kbroker.config.sasl import SCRAM_SECRET
from kbroker.config.topic import ATTACHED_END_OFFSETS, ATTACHED_LEADER_EPOCH
from kbroker.controller.context import Context, TooManyRecords, error_text
from kbroker.controller.decisions import decides
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
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages import alter_configs as legacy
from wire.messages import incremental_alter_configs as incremental
from wire.stored.metadata import ConfigRecord

CHANGEABLE_TYPES: Final = frozenset({TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE, CLIENT_METRICS_RESOURCE})
"""The types of resources whose settings are in the metadata log."""
AT_CREATION_ONLY: Final = (ATTACHED_END_OFFSETS, ATTACHED_LEADER_EPOCH)
OWN_PREFIX: Final = "kbroker."

Resource = tuple[int, str]
Change = TypeVar("Change", incremental.AlterConfigsResource, legacy.AlterConfigsResource)


class Operation(IntEnum):
    """The operation of an incremental change on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@decides(incremental.IncrementalAlterConfigsRequest, changes=True, may_be_long=True)
def incremental_alter_configs(
    context: Context, request: incremental.IncrementalAlterConfigsRequest
) -> Outcome[incremental.IncrementalAlterConfigsResponse]:
    """Decide the changes of each resource.

    Per resource: INVALID_REQUEST (duplicate resource, duplicate key, no value, a logger, unknown operation),
    UNSUPPORTED_VERSION (unknown type, which brokers refuse with INVALID_REQUEST before they ask), INVALID_CONFIG,
    UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_TOPIC_EXCEPTION.
    POLICY_VIOLATION if the request needs too many records.
    """
    answers, records = _decide_each(context, request.resources)
    return Outcome(
        [] if request.validate_only else records, incremental.IncrementalAlterConfigsResponse(responses=answers)
    )


@decides(legacy.AlterConfigsRequest, changes=True, may_be_long=True)
def alter_configs(context: Context, request: legacy.AlterConfigsRequest) -> Outcome[legacy.AlterConfigsResponse]:
    """Decide the older request, which replaces all overrides of a resource: keys that the request omits are deleted.

    A topic keeps its overrides of kbroker's own settings, such as leases, unless the request names them: clients that
    were written for Kafka do not know them, and would expose leased records or make a read-only topic writable. The
    request also leaves kbroker.sasl.scram.secret as it is, because clients cannot read its value to send it again.
    Errors as above.
    """
    answers, records = _decide_each(context, request.resources)
    return Outcome([] if request.validate_only else records, legacy.AlterConfigsResponse(responses=answers))


def _decide_each(
    context: Context, resources: Sequence[Change]
) -> tuple[list[incremental.AlterConfigsResourceResponse], list[Any]]:
    """The answer for each resource, and the records of the resources that succeed."""
    answers = [
        incremental.AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        for resource in resources
    ]
    times = Counter((answer.resource_type, answer.resource_name) for answer in answers)
    records: list[Any] = []
    for resource, answer in zip(resources, answers, strict=True):
        name = (resource.resource_type, resource.resource_name)
        try:
            if name[0] not in CHANGEABLE_TYPES and name[0] != BROKER_LOGGER_RESOURCE:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {name[0]}.")
            if times[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            check_keys(resource.configs)
            decided = _validated(context, name, wanted_values(context.image, context.rules, resource))
            context.require_room(records, len(decided))
        except TooManyRecords as error:
            for every in answers:
                every.error_code, every.error_message = error.code, error_text(error)
            return answers, []
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error_text(error)
        else:
            records += decided
    return answers, records


def check_keys(configs: Sequence[Any]) -> None:
    """Raise INVALID_REQUEST for a key that is given twice, or without a value that its operation needs."""
    if len({config.name for config in configs}) != len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [
        config.name
        for config in configs
        if config.value is None and getattr(config, "config_operation", Operation.SET) != Operation.DELETE
    ]
    if missing:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def wanted_values(image: Image, rules: ConfigRules, resource: Change) -> dict[str, str | None]:
    """The values that a change sets; None deletes. `check_keys` has accepted its keys.

    Errors  INVALID_REQUEST, INVALID_CONFIG
    """
    current = image.configs.get((resource.resource_type, resource.resource_name), {})
    if isinstance(resource, legacy.AlterConfigsResource):
        is_topic = resource.resource_type == TOPIC_RESOURCE
        omitted = (key for key in current if key != SCRAM_SECRET and not (is_topic and key.startswith(OWN_PREFIX)))
        return {**dict.fromkeys(omitted), **{config.name: config.value for config in resource.configs}}
    wanted: dict[str, str | None] = {}
    for config in resource.configs:
        operation = known_operation(config.config_operation)
        if operation is Operation.DELETE:
            wanted[config.name] = None
            continue
        assert config.value is not None
        wanted[config.name] = config.value
        if operation is not Operation.SET:
            start = current.get(config.name)
            if start is None:
                start = rules.default(resource.resource_type, config.name) or ""
            if not rules.is_list(resource.resource_type, config.name):
                text = f"Can't {operation.name} to key {config.name} because its type is not LIST."
                raise KafkaError(ErrorCode.INVALID_CONFIG, text)
            wanted[config.name] = _edited_list(start, operation, config.value)
    return wanted


def known_operation(code: int) -> Operation:
    """The operation with this code. Raises INVALID_REQUEST."""
    try:
        return Operation(code)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {code}") from None


def _edited_list(start: str, operation: Operation, value: str) -> str:
    """A list after APPEND, which adds only new parts, or SUBTRACT, where each part removes its first occurrence.

    The cost is linear, because a value may have thousands of parts.
    """
    parts, given = [part for part in start.split(",") if part], value.split(",")
    if operation is Operation.APPEND:
        present = set(parts)
        return ",".join((*parts, *(part for part in dict.fromkeys(given) if part not in present)))
    removed, kept = Counter(given), []
    for part in parts:
        if removed[part]:
            removed[part] -= 1
        else:
            kept.append(part)
    return ",".join(kept)


def with_values(current: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of a resource after a change."""
    return {key: value for key, value in {**current, **wanted}.items() if value is not None}


def _validated(context: Context, resource: Resource, wanted: Mapping[str, str | None]) -> list[ConfigRecord]:
    """The records that set these keys (None deletes), after all checks of the resulting configuration."""
    resource_type, resource_name = resource
    current = context.image.configs.get(resource, {})
    configs = with_values(current, wanted)
    if resource_type == TOPIC_RESOURCE:
        _check_topic(context, resource_name, configs, current)
    elif resource_type == BROKER_RESOURCE:
        _check_broker(context, resource_name, configs, current)
    elif resource_type == GROUP_RESOURCE:
        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        context.rules.validate_group(configs)
    elif resource_type == CLIENT_METRICS_RESOURCE:
        if not resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        context.rules.validate_client_metrics(configs)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return [
        ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=key, value=value)
        for key, value in wanted.items()
        if resource_type == BROKER_RESOURCE or value != current.get(key)
    ]


def _check_topic(context: Context, name: str, configs: Mapping[str, str], current: Mapping[str, str]) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    fault = topic_name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    context.check_topic(name, configs, current)
    for key in AT_CREATION_ONLY:
        if configs.get(key) != current.get(key):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key} can be set only when a topic is created.")
    if name not in context.image.topics_by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _check_broker(context: Context, name: str, configs: Mapping[str, str], current: Mapping[str, str]) -> None:
    if name:
        node_id = parse_node_id(name, fault="Unable to parse broker name as a base 10 number.")
        if node_id not in context.image.brokers and node_id not in context.image.controllers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node_id} found.")
    context.rules.validate_broker(configs, current, per_broker=bool(name))


def parse_node_id(name: str, *, fault: str) -> int:
    """The node that a broker resource names. Raises INVALID_REQUEST with the text `fault`."""
    if not (name.isascii() and name.isdigit() and len(name) <= NODE_ID_DIGITS):
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    return int(name)
