"""The operations of `kbroker config` on a connected client: settings of topics, brokers, loggers and groups.

This module sends raw requests, because the client's own methods do not support the defaults of all brokers (the broker
resource with an empty name) and do not report resources that do not exist.

Source: ConfigCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka.admin import ConfigResourceType, KafkaAdminClient
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from kbroker.cli import CommandFailed
from kbroker.cli._admin import ask, explain_code

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
UNKNOWN_TOPIC: Final = 3
SET: Final = 0
DELETE: Final = 1


class Kind(NamedTuple):
    """A type of entity: its resource type, and the source of its own settings; None if all settings are its own."""

    resource_type: ConfigResourceType
    own_source: str | None


KINDS: Final[Mapping[str, Kind]] = {
    "topics": Kind(ConfigResourceType.TOPIC, "DYNAMIC_TOPIC_CONFIG"),
    "brokers": Kind(ConfigResourceType.BROKER, "DYNAMIC_BROKER_CONFIG"),
    "broker-loggers": Kind(ConfigResourceType.BROKER_LOGGER, None),
    "groups": Kind(ConfigResourceType.GROUP, "DYNAMIC_GROUP_CONFIG"),
    "client-metrics": Kind(ConfigResourceType.CLIENT_METRICS, "DYNAMIC_CLIENT_METRICS_CONFIG"),
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


def entities(client: KafkaAdminClient, kind: str) -> list[Entity]:
    """All entities of a type that can have settings."""
    if kind == "topics":
        names = sorted(topic["name"] for topic in client.describe_topics())
    elif kind in {"brokers", "broker-loggers"}:
        names = [str(broker["broker_id"]) for broker in client.describe_cluster()["brokers"]]
        names += [""] if kind == "brokers" else []
    elif kind == "groups":
        from kbroker.cli._groups import list_groups  # noqa: PLC0415

        names = [each.group for each in list_groups(client, states=(), types=())]
    else:
        found = client.list_config_resources([KINDS[kind].resource_type])
        names = sorted(name for listed in found.values() for name in listed)
    return [Entity(kind, name) for name in names]


def describe(client: KafkaAdminClient, entity: Entity, *, all_of_them: bool) -> list[Setting]:
    """The settings of an entity, sorted by name: all, or only its own."""
    request = DescribeConfigsRequest(
        resources=[(int(KINDS[entity.kind].resource_type), entity.name, None)], include_synonyms=True
    )
    (answer,) = ask(client, request, node_id=_node_to_ask(client, entity)).results
    _raise_for(entity, answer)
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


def alter(client: KafkaAdminClient, entity: Entity, *, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Set and unset settings, all or none. Raises CommandFailed if the broker refuses or a deleted one is not set."""
    if deleted:
        known = {each.name for each in describe(client, entity, all_of_them=False)}
        if missing := [name for name in deleted if name not in known]:
            raise CommandFailed(f"Invalid config(s): {','.join(missing)}")
    changes: list[tuple[str, int, str | None]] = [(name, SET, value) for name, value in added.items()]
    changes += [(name, DELETE, None) for name in deleted]
    request = IncrementalAlterConfigsRequest(
        resources=[(int(KINDS[entity.kind].resource_type), entity.name, changes)], validate_only=False
    )
    (answer,) = ask(client, request, node_id=_node_to_ask(client, entity)).responses
    _raise_for(entity, answer)


def _raise_for(entity: Entity, answer: Any) -> None:
    if answer.error_code == UNKNOWN_TOPIC:
        raise CommandFailed(f"topic {entity.name!r} does not exist")
    if answer.error_code:
        raise CommandFailed(explain_code(answer.error_code, answer.error_message))


def _node_to_ask(client: KafkaAdminClient, entity: Entity) -> int | None:
    if entity.node_id is None:
        return None
    known = [broker["broker_id"] for broker in client.describe_cluster()["brokers"]]
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
