"""What a broker does with a change of settings before the controller decides it.

A broker checks the settings of brokers itself, because only a broker knows its own settings: Apache Kafka's controllers
store whatever a broker forwards. It also refuses requests that those controllers would misunderstand. A logger's level
belongs to one process: it changes here at once, and is lost when the process ends.

A resource with many keys or long values is checked in a thread, because each key may take tens of microseconds and a
list may have thousands of parts.

Source: ConfigAdminManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeGuard, TypeVar

from kbroker.config import Settings
from kbroker.config.catalogue import LISTENER_PREFIX
from kbroker.config.resources import refusing
from kbroker.config.rules import ConfigRules
from kbroker.controller.configs import (
    CHANGEABLE_TYPES,
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
from kbroker.runtime.net_ports import Env
from kbroker.runtime.turns import Turns
from kbroker.security.securing import NodeSecurity
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

KEYS_ON_THE_LOOP: Final = 50
CHARACTERS_ON_THE_LOOP: Final = 50_000
"""A resource with more keys, or with longer values together, is checked in a thread."""

R = TypeVar("R", AlterConfigsResponse, IncrementalAlterConfigsResponse)


class ConfigChanges:
    """See the module docstring."""

    def __init__(
        self,
        env: Env,
        controller: ControllerPort,
        metadata: MetadataPublisher,
        settings: Settings,
        turns: Turns,
        *,
        security: NodeSecurity | None = None,
    ) -> None:
        self._env = env
        self._controller = controller
        self._metadata = metadata
        self._node_id = settings.node_id
        self._rules = ConfigRules(settings)
        self._settings = settings
        self._security = security
        self._turns = turns

    async def alter(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        response: type[R],
        sender: Sender,
        *,
        demand: Callable[[Any], None],
    ) -> R:
        """Change the levels of loggers, and have the controller decide all other changes that this broker accepts.

        demand  raises KafkaError if the sender may not change the settings of a resource
        Per resource: INVALID_REQUEST, INVALID_CONFIG, those of demand; and what the controller answers
        """
        times = Counter((one.resource_type, one.resource_name) for one in request.resources)
        answers: list[AlterConfigsResourceResponse] = []
        accepted: list[Any] = []
        for resource in request.resources:
            if self._turns.due():
                await self._turns.next()
            try:
                if times[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                is_long = _is_long(resource)
                await self._env.run_blocking(self._check_shape, resource) if is_long else self._check_shape(resource)
                demand(resource)
                if _is_logger(resource):
                    self._alter_logger(resource, validate_only=request.validate_only)
                    answers.append(_answer(resource))
                    continue
                if resource.resource_type == BROKER_RESOURCE:
                    # Kafka checks the values before the rights. But the check opens files that the request names, and
                    # its errors can show current values.
                    check = partial(self._check_broker, resource)
                    await self._env.run_blocking(check) if is_long or self._may_renew(resource) else check()
                accepted.append(resource)
            except KafkaError as error:
                answers.append(_answer(resource, error))
        if accepted:
            rest = type(request)(resources=accepted, validate_only=request.validate_only)
            answers += (await self._controller.ask(rest, response, sender=sender)).responses
        return response(responses=_in_order(request.resources, answers))

    def _alter_logger(self, resource: AlterConfigsResource, *, validate_only: bool) -> None:
        """Apply all changes, or none."""
        name = resource.resource_name
        if _node_id(name) != self._node_id:
            text = f"Unexpected node id. Expected {self._node_id}, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        known = logs.levels()
        levels = {change.name: _wanted_level(change, known) for change in resource.configs}
        if not validate_only:
            for logger, level in levels.items():
                logs.set_level(logger, level)

    def _check_shape(self, resource: Any) -> None:
        check_keys(resource.configs)
        if _is_logger(resource):
            return
        if resource.resource_type not in CHANGEABLE_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
        if isinstance(resource, AlterConfigsResource):
            for unknown in {config.config_operation for config in resource.configs}.difference(Operation):
                known_operation(unknown)
        if resource.resource_type != BROKER_RESOURCE:
            return
        name = resource.resource_name
        if name and _node_id(name) != self._node_id:
            text = f"Unexpected broker id, expected {self._node_id}, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _check_broker(self, resource: Any) -> None:
        name, image = resource.resource_name, self._metadata.image
        current = image.configs.get((BROKER_RESOURCE, name), {})
        wanted = wanted_values(image, self._rules, resource)
        values = with_values(current, wanted)
        self._rules.validate_broker(values, current, per_broker=bool(name))
        if self._may_renew(resource):
            assert self._security is not None
            cluster = image.configs.get((BROKER_RESOURCE, ""), {})
            with refusing(ErrorCode.INVALID_REQUEST):
                self._security.check(self._settings.with_dynamic(cluster, values))

    def _may_renew(self, resource: Any) -> bool:
        """Whether a change may be one of certificates or logins, which this broker tries before it accepts it."""
        if self._security is None or not self._security.is_dynamic:
            return False
        return any(one.name.startswith((LISTENER_PREFIX, "sasl.")) for one in resource.configs)


def _in_order(
    resources: Sequence[Any], answers: Iterable[AlterConfigsResourceResponse]
) -> list[AlterConfigsResourceResponse]:
    """The answers in the order of the request; UNKNOWN_SERVER_ERROR for a resource that the controller left out."""
    found = {(answer.resource_type, answer.resource_name): answer for answer in answers}
    missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The controller has not answered for this resource.")
    return [found.get((one.resource_type, one.resource_name)) or _answer(one, missing) for one in resources]


def _is_long(resource: Any) -> bool:
    configs = resource.configs
    return len(configs) > KEYS_ON_THE_LOOP or sum(len(one.value or "") for one in configs) > CHARACTERS_ON_THE_LOOP


def _is_logger(resource: Any) -> TypeGuard[AlterConfigsResource]:
    """Only IncrementalAlterConfigs can change loggers; in the older request their type is unknown."""
    return isinstance(resource, AlterConfigsResource) and resource.resource_type == BROKER_LOGGER_RESOURCE


def _answer(resource: Any, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    if error is not None:
        # Without a text Java's clients show their own; with an empty one they show nothing.
        answer.error_code, answer.error_message = error.code, error.message or None
    return answer


def _node_id(name: str) -> int:
    return parse_node_id(name, fault=f"Node id must be an integer, but it is: {name}")


def _wanted_level(change: AlterableConfig, known: Collection[str]) -> str | None:
    """The level that a logger is to have; None means the parent logger's level."""
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
