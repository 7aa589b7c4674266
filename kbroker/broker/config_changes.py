"""What a broker does with a change of settings before the controller decides it.

A broker checks the settings of brokers itself, because only a broker knows its own settings: Apache Kafka's controllers
store whatever a broker forwards. It also refuses requests that those controllers would misunderstand. A logger's level
belongs to one process: it changes here at once, and is lost when the process ends.

Source: ConfigAdminManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

from kbroker.config import Settings
from kbroker.config.rules import ConfigRules
from kbroker.controller.configs import (
    Operation,
    check_keys,
    known_operation,
    parse_node_id,
    wanted_values,
    with_values,
)
from kbroker.controller.port import ControllerPort, Sender
from kbroker.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime import event_log as logs
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

R = TypeVar("R", AlterConfigsResponse, IncrementalAlterConfigsResponse)


class ConfigChanges:
    """See the module docstring."""

    def __init__(self, controller: ControllerPort, metadata: MetadataPublisher, settings: Settings) -> None:
        self._controller = controller
        self._metadata = metadata
        self._node_id = settings.node_id
        self._rules = ConfigRules(settings)

    async def alter(
        self, request: AlterConfigsRequest | IncrementalAlterConfigsRequest, response: type[R], sender: Sender
    ) -> R:
        """Change the levels of loggers, and have the controller decide all other changes that this broker accepts.

        Per resource: INVALID_REQUEST, INVALID_CONFIG; and what the controller answers
        """
        loggers = [one for one in request.resources if _is_logger(one)]
        answers = _alter_loggers(loggers, node_id=self._node_id, validate_only=request.validate_only)
        accepted: list[Any] = []
        for resource in request.resources:
            if not _is_logger(resource):
                try:
                    self._check(resource)
                except KafkaError as error:
                    answers.append(_answer(resource, error))
                else:
                    accepted.append(resource)
        if accepted:
            rest = type(request)(resources=accepted, validate_only=request.validate_only)
            answers += (await self._controller.ask(rest, response, sender=sender)).responses
        return response(responses=_in_order(request.resources, answers))

    def _check(self, resource: Any) -> None:
        check_keys(resource.configs)
        if isinstance(resource, AlterConfigsResource):
            for config in resource.configs:
                known_operation(config.config_operation)
        if resource.resource_type != BROKER_RESOURCE:
            return
        name = resource.resource_name
        if name and parse_node_id(name) != self._node_id:
            text = f"Unexpected broker id, expected {self._node_id}, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        image = self._metadata.image
        current = image.configs.get((BROKER_RESOURCE, name), {})
        wanted = wanted_values(image, self._rules, resource)
        self._rules.validate_broker(with_values(current, wanted), current, per_broker=bool(name))


def _in_order(
    resources: Sequence[Any], answers: Iterable[AlterConfigsResourceResponse]
) -> list[AlterConfigsResourceResponse]:
    """The answers in the order of the request; UNKNOWN_SERVER_ERROR for a resource that the controller left out."""
    found = {(answer.resource_type, answer.resource_name): answer for answer in answers}
    missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller has not answered for this resource.")
    return [found.get((one.resource_type, one.resource_name)) or _answer(one, missing) for one in resources]


def _is_logger(resource: Any) -> TypeGuard[AlterConfigsResource]:
    """Only IncrementalAlterConfigs can change loggers; the controller refuses them in the older request."""
    return isinstance(resource, AlterConfigsResource) and resource.resource_type == BROKER_LOGGER_RESOURCE


def _answer(resource: Any, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    if error is not None:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _alter_loggers(
    resources: Sequence[AlterConfigsResource], *, node_id: int, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Change the levels of loggers; all changes of one resource are applied, or none."""
    times = Counter(resource.resource_name for resource in resources)
    answers = []
    for resource in resources:
        try:
            if times[resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            levels = _wanted_levels(resource, node_id)
        except KafkaError as error:
            answers.append(_answer(resource, error))
        else:
            if not validate_only:
                for name, level in levels.items():
                    logs.set_level(name, level)
            answers.append(_answer(resource))
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
