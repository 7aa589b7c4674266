"""What `kbroker config` asks of brokers and prints: settings of topics, brokers, loggers and groups.

The defaults of all brokers are the settings of the broker resource with an empty name.

Source: ConfigCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed
from kbroker.cli._admin import explain_code
from kbroker.cli._groups import nearest_topic
from kbroker.cli._say import say, say_json
from kbroker.cli._table import is_terminal, print_table
from kbroker.client.cluster import Cluster
from kbroker.client.operations import describe_configs
from kbroker.config.describe import ConfigSource as Source
from kbroker.config.values import Kind
from kbroker.metadata.parts import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from kbroker.runtime.visible import visible
from wire.errors import ErrorCode, check
from wire.messages.describe_configs import DescribeConfigsResourceResult
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.list_config_resources import ListConfigResourcesRequest

SET: Final = 0
DELETE: Final = 1


class EntityKind(NamedTuple):
    """A type of entity: its resource type, and the source of its own settings; None if all settings are its own."""

    resource_type: int
    own_source: Source | None


KINDS: Final[Mapping[str, EntityKind]] = {
    "topics": EntityKind(TOPIC_RESOURCE, Source.DYNAMIC_TOPIC_CONFIG),
    "brokers": EntityKind(BROKER_RESOURCE, Source.DYNAMIC_BROKER_CONFIG),
    "broker-loggers": EntityKind(BROKER_LOGGER_RESOURCE, None),
    "groups": EntityKind(GROUP_RESOURCE, Source.DYNAMIC_GROUP_CONFIG),
    "client-metrics": EntityKind(CLIENT_METRICS_RESOURCE, Source.DYNAMIC_CLIENT_METRICS_CONFIG),
}


@dataclass(frozen=True, slots=True)
class Entity:
    """The owner of settings: a type and a name. The name is empty for the defaults of all brokers."""

    kind: str
    name: str

    @property
    def is_default(self) -> bool:
        return not self.name

    @property
    def node_id(self) -> int | None:
        """The only broker that can answer for it; None if every broker can."""
        return int(self.name) if self.kind in {"brokers", "broker-loggers"} and self.name else None

    @property
    def own_source(self) -> Source | None:
        if self.kind == "brokers" and self.is_default:
            return Source.DYNAMIC_DEFAULT_BROKER_CONFIG
        return KINDS[self.kind].own_source


def entities(client: Cluster, kind: str) -> list[Entity]:
    """All entities of a type that can have settings."""
    if kind == "topics":
        names = sorted(str(topic.name) for topic in client.metadata(None).topics)
    elif kind in {"brokers", "broker-loggers"}:
        names = [str(node_id) for node_id in _node_ids(client)]
        names += [""] if kind == "brokers" else []
    elif kind == "groups":
        from kbroker.cli._groups import list_groups  # noqa: PLC0415

        names = [each.group for each in list_groups(client)]
    else:
        # Before version 1, brokers list these only.
        of_types = [KINDS[kind].resource_type] if client.serves(ListConfigResourcesRequest, version=1) else []
        found = client.ask(ListConfigResourcesRequest(resource_types=of_types))
        check(found.error_code)
        names = sorted(each.resource_name for each in found.config_resources)
    return [Entity(kind, name) for name in names]


def describe(client: Cluster, entity: Entity, *, all_of_them: bool) -> list[DescribeConfigsResourceResult]:
    """The settings of an entity, sorted by name: all, or only its own."""
    kind, node_id = KINDS[entity.kind], _node_to_ask(client, entity)
    (answer,) = describe_configs(client, kind.resource_type, [entity.name], node_id=node_id)
    _raise_for(client, entity, answer.error_code, answer.error_message)
    own = None if all_of_them else entity.own_source
    found = [each for each in answer.configs if own is None or each.config_source == own]
    return sorted(found, key=lambda each: each.name)


def alter(client: Cluster, entity: Entity, *, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Set and unset settings, all or none. Raises CommandFailed if the broker refuses or a deleted one is not set."""
    if deleted:
        known = {each.name for each in describe(client, entity, all_of_them=False)}
        if missing := [name for name in deleted if name not in known]:
            raise CommandFailed(f"Invalid config(s): {','.join(missing)}")
    changes = [AlterableConfig(name=name, config_operation=SET, value=value) for name, value in added.items()]
    changes += [AlterableConfig(name=name, config_operation=DELETE, value=None) for name in deleted]
    resource = AlterConfigsResource(
        resource_type=KINDS[entity.kind].resource_type, resource_name=entity.name, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    (answer,) = client.ask(request, _node_to_ask(client, entity)).responses
    _raise_for(client, entity, answer.error_code, answer.error_message)


def _raise_for(client: Cluster, entity: Entity, code: int, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise CommandFailed(f"topic {entity.name!r} does not exist{nearest_topic(client, entity.name)}")
    if code:
        raise CommandFailed(explain_code(code, message))


def _node_ids(client: Cluster) -> list[int]:
    client.metadata([])
    return list(client.nodes)


def _node_to_ask(client: Cluster, entity: Entity) -> int | None:
    if entity.node_id is None:
        return None
    known = _node_ids(client)
    if entity.node_id not in known:
        raise CommandFailed(f"broker {entity.node_id} does not exist; the brokers are {', '.join(map(str, known))}")
    return entity.node_id


def show(client: Cluster, kind: str, name: str | None, options: argparse.Namespace) -> None:
    """Print the settings of an entity, or of all entities of a type."""
    meant = [Entity(kind, name)] if name is not None else entities(client, kind)
    described = [(entity, describe(client, entity, all_of_them=options.all)) for entity in meant]
    if options.format == "json":
        say_json([_as_json(entity, settings) for entity, settings in described])
        return
    for entity, settings in described:
        _print(entity, settings, everything=options.all)


def _print(entity: Entity, settings: Sequence[DescribeConfigsResourceResult], *, everything: bool) -> None:
    title = f"Default configs for {entity.kind} in the cluster are:"
    if not entity.is_default:
        title = f"{'All' if everything else 'Dynamic'} configs for {entity.kind.removesuffix('s')} {entity.name} are:"
    if is_terminal():
        rows = [
            (each.name, _text(each.value), _name(Source, each.config_source), _name(Kind, each.config_type))
            for each in settings
        ]
        print_table(visible(title), ("name", "value", "source", "type"), rows)
        return
    say(title)
    for each in settings:
        synonyms = ", ".join(f"{_name(Source, one.source)}:{one.name}={_text(one.value)}" for one in each.synonyms)
        say(f"  {each.name}={_text(each.value)} sensitive={str(each.is_sensitive).lower()} synonyms={{{synonyms}}}")


def _text(value: str | None) -> str:
    return "null" if value is None else value


def _name(names: type[IntEnum], number: int) -> str:
    return next((each.name for each in names if each == number), "UNKNOWN")


def _as_json(entity: Entity, settings: Sequence[DescribeConfigsResourceResult]) -> dict[str, Any]:
    return {
        "entity_type": entity.kind,
        "entity_name": entity.name or None,
        "configs": [
            {
                "name": each.name,
                "value": each.value,
                "source": _name(Source, each.config_source),
                "type": _name(Kind, each.config_type),
                "is_sensitive": each.is_sensitive,
                "is_read_only": each.read_only,
                "synonyms": [
                    {"source": _name(Source, one.source), "name": one.name, "value": one.value} for one in each.synonyms
                ],
            }
            for each in settings
        ],
    }
