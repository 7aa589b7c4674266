"""The operations of `kbroker config` on a connected client: settings of topics, brokers, loggers and groups.

The defaults of all brokers are the settings of the broker resource with an empty name.

Source: ConfigCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed
from kbroker.cli._admin import explain_code
from kbroker.client.cluster import Cluster
from kbroker.client.operations import describe_configs
from kbroker.metadata.parts import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from wire.errors import ErrorCode, check
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.list_config_resources import ListConfigResourcesRequest

# Kafka's numbers for the source of a value.
SOURCES: Final[Mapping[int, str]] = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
TYPES: Final = ("UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD")
SET: Final = 0
DELETE: Final = 1


class Kind(NamedTuple):
    """A type of entity: its resource type, and the source of its own settings; None if all settings are its own."""

    resource_type: int
    own_source: str | None


KINDS: Final[Mapping[str, Kind]] = {
    "topics": Kind(TOPIC_RESOURCE, "DYNAMIC_TOPIC_CONFIG"),
    "brokers": Kind(BROKER_RESOURCE, "DYNAMIC_BROKER_CONFIG"),
    "broker-loggers": Kind(BROKER_LOGGER_RESOURCE, None),
    "groups": Kind(GROUP_RESOURCE, "DYNAMIC_GROUP_CONFIG"),
    "client-metrics": Kind(CLIENT_METRICS_RESOURCE, "DYNAMIC_CLIENT_METRICS_CONFIG"),
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
    def own_source(self) -> str | None:
        if self.kind == "brokers" and self.is_default:
            return "DYNAMIC_DEFAULT_BROKER_CONFIG"
        return KINDS[self.kind].own_source


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as a broker reports it; `value` is None if it is secret or null."""

    name: str
    value: str | None
    source: str
    type: str
    is_sensitive: bool
    is_read_only: bool
    synonyms: list[tuple[str, str, str | None]]


def entities(client: Cluster, kind: str) -> list[Entity]:
    """All entities of a type that can have settings."""
    if kind == "topics":
        names = sorted(str(topic.name) for topic in client.metadata(None).topics)
    elif kind in {"brokers", "broker-loggers"}:
        names = [str(node_id) for node_id in _node_ids(client)]
        names += [""] if kind == "brokers" else []
    elif kind == "groups":
        from kbroker.cli._groups import list_groups  # noqa: PLC0415

        names = [each.group for each in list_groups(client, states=(), types=())]
    else:
        # Before version 1, brokers list these only.
        of_types = [KINDS[kind].resource_type] if client.serves(ListConfigResourcesRequest, version=1) else []
        found = client.ask(ListConfigResourcesRequest(resource_types=of_types))
        check(found.error_code)
        names = sorted(each.resource_name for each in found.config_resources)
    return [Entity(kind, name) for name in names]


def describe(client: Cluster, entity: Entity, *, all_of_them: bool) -> list[Setting]:
    """The settings of an entity, sorted by name: all, or only its own."""
    kind, node_id = KINDS[entity.kind], _node_to_ask(client, entity)
    (answer,) = describe_configs(client, kind.resource_type, [entity.name], node_id=node_id)
    _raise_for(entity, answer.error_code, answer.error_message)
    found = [
        Setting(
            name=each.name,
            value=each.value,
            source=SOURCES.get(each.config_source, "UNKNOWN"),
            type=TYPES[each.config_type] if 0 <= each.config_type < len(TYPES) else TYPES[0],
            is_sensitive=each.is_sensitive,
            is_read_only=each.read_only,
            synonyms=[(SOURCES.get(one.source, "UNKNOWN"), one.name, one.value) for one in each.synonyms],
        )
        for each in answer.configs
    ]
    own = None if all_of_them else entity.own_source
    return sorted((each for each in found if own is None or each.source == own), key=lambda each: each.name)


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
    _raise_for(entity, answer.error_code, answer.error_message)


def _raise_for(entity: Entity, code: int, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise CommandFailed(f"topic {entity.name!r} does not exist")
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


def as_json(entity: Entity, settings: Sequence[Setting]) -> dict[str, Any]:
    """The settings of an entity as JSON."""
    return {
        "entity_type": entity.kind,
        "entity_name": None if entity.is_default else entity.name,
        "configs": [
            {
                "name": each.name,
                "value": each.value,
                "source": each.source,
                "type": each.type,
                "is_sensitive": each.is_sensitive,
                "is_read_only": each.is_read_only,
                "synonyms": [{"source": source, "name": name, "value": value} for source, name, value in each.synonyms],
            }
            for each in settings
        ],
    }
