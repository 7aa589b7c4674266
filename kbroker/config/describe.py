"""The entries of a DescribeConfigs response: each key with its value, its source and its synonyms.

The synonyms of a key are all the places that could give its value, strongest first: for each source, the key and then
the keys that it falls back to. As in Kafka, synonyms before the first one with the described name are left out. That is
why a topic's `retention.ms` shows `log.retention.hours` only after a `log.retention.ms`. Source: `ConfigHelper` and
`DynamicBrokerConfig.brokerConfigSynonyms` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile

from kbroker.config.catalogue import BROKER, LISTENER_PREFIX, TOPIC, base_of_listener_key, broker_setting
from kbroker.config.load import Settings
from kbroker.config.resources import CLIENT_METRICS, GROUP
from kbroker.config.settings import Dynamic, Setting
from kbroker.config.values import Kind, to_text
from wire.messages.describe_configs import DescribeConfigsResourceResult as Entry
from wire.messages.describe_configs import DescribeConfigsSynonym as Synonym


class ConfigSource(IntEnum):
    """Where a value was set (int8 on the wire)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


def describe_topic(
    settings: Settings, configs: Mapping[str, str], *, keys: Collection[str] | None = None
) -> list[Entry]:
    """A topic's settings by name; configs are the topic's own settings; keys None or empty means all keys."""
    values = settings.topic_values(configs)
    names = {name for name, one in TOPIC.items() if not one.internal} | set(configs)
    entries = []
    for name in sorted(names.intersection(keys) if keys else names):
        declaration = TOPIC.get(name) or Setting(name=name)
        value = None if declaration.sensitive else to_text(values[name])
        synonyms = _behind(settings, declaration)
        if name in configs:
            synonyms.insert(0, Synonym(name=name, value=value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG))
        entries.append(_entry(declaration, value, synonyms, read_only=False))
    return entries


def describe_broker(settings: Settings, *, keys: Collection[str] | None = None) -> list[Entry]:
    """This broker's settings by name."""
    layers = settings.layers
    names = {name for name, one in BROKER.items() if not one.internal}.union(
        layers.broker, layers.cluster, layers.static
    )
    entries = []
    for name in sorted(names.intersection(keys) if keys else names):
        declaration = _declaration(name)
        text = layers.text(name)
        value = None
        if not declaration.sensitive:
            value = declaration.default_text if text is None else to_text(declaration.parse(text))
        synonyms = _synonyms(settings, _alternatives(name), described=name, hidden=declaration.sensitive)
        entries.append(_entry(declaration, value, synonyms, read_only=_is_read_only(declaration)))
    return entries


def describe_cluster_defaults(settings: Settings, *, keys: Collection[str] | None = None) -> list[Entry]:
    """Only the dynamic settings of all brokers (the broker resource with an empty name)."""
    entries = []
    for name, text in sorted(settings.layers.cluster.items()):
        if keys and name not in keys:
            continue
        declaration = _declaration(name)
        value = None if declaration.sensitive else text
        synonym = Synonym(name=name, value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        entries.append(_entry(declaration, value, [synonym], read_only=_is_read_only(declaration)))
    return entries


def describe_group(
    settings: Settings, configs: Mapping[str, str], *, keys: Collection[str] | None = None
) -> list[Entry]:
    """A group's settings by name; configs are the group's own settings."""
    entries = []
    for name, declaration in GROUP.items():
        if keys and name not in keys:
            continue
        synonyms = _behind(settings, declaration) or [
            Synonym(name=name, value=declaration.default_text, source=ConfigSource.DEFAULT_CONFIG)
        ]
        if name in configs:
            synonyms.insert(0, Synonym(name=name, value=configs[name], source=ConfigSource.DYNAMIC_GROUP_CONFIG))
        entries.append(_entry(declaration, synonyms[0].value, synonyms, read_only=False))
    return entries


def describe_client_metrics(configs: Mapping[str, str], *, keys: Collection[str] | None = None) -> list[Entry]:
    """A client metrics subscription by key; as in Kafka, one that does not exist has the defaults."""
    entries = []
    for name, declaration in CLIENT_METRICS.items():
        if keys and name not in keys:
            continue
        value = configs.get(name, declaration.default_text)
        source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
        synonyms = [Synonym(name=name, value=value, source=source)] if name in configs else []
        entries.append(_entry(declaration, value, synonyms, read_only=False))
    return entries


def describe_logger(name: str, level: str) -> Entry:
    """A logger as Kafka's tools see it: its name is the key and its level is the value."""
    return Entry(
        name=name,
        value=level,
        read_only=False,
        config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
        is_sensitive=False,
        synonyms=[],
        config_type=Kind.UNKNOWN,
        documentation="",
    )


def _behind(settings: Settings, declaration: Setting) -> list[Synonym]:
    """The broker's synonyms of a topic's or group's key."""
    names = [name for name, _ in declaration.synonyms]
    return _synonyms(settings, names, described=names[0], hidden=declaration.sensitive) if names else []


def _declaration(name: str) -> Setting:
    return broker_setting(name) or Setting(name=name)


def _entry(declaration: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool) -> Entry:
    return Entry(
        name=declaration.name,
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=declaration.sensitive,
        synonyms=synonyms,
        config_type=declaration.kind,
        documentation=declaration.doc or declaration.why,
    )


def _synonyms(settings: Settings, names: Sequence[str], *, described: str, hidden: bool) -> list[Synonym]:
    """Every place that gives a value to one of these keys, beginning with the first for the described key."""
    layers = settings.layers
    found: list[Synonym] = []
    for source, layer in (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, layers.broker),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, layers.cluster),
        (ConfigSource.STATIC_BROKER_CONFIG, layers.static),
    ):
        found.extend(
            Synonym(name=name, value=None if hidden else layer[name], source=source) for name in names if name in layer
        )
    for name in names:
        declaration = BROKER.get(name)
        if declaration is not None and (default := declaration.default_text) is not None:
            found.append(Synonym(name=name, value=None if hidden else default, source=ConfigSource.DEFAULT_CONFIG))
    return list(dropwhile(lambda one: one.name != described, found))


def _same_with_other_units() -> dict[str, list[str]]:
    """Broker keys that are one setting in several units; each maps to all of them, strongest first."""
    groups: dict[str, list[str]] = {}
    for declaration in TOPIC.values():
        names = [name for name, _ in declaration.synonyms]
        if len(names) > 1:
            # log.flush.interval.ms falls back to the scheduler's interval, but not the other way round.
            groups |= dict.fromkeys(names if names[0] != "log.flush.interval.ms" else names[:1], names)
    return groups


_GROUPS = _same_with_other_units()


def _alternatives(name: str) -> list[str]:
    if (base := base_of_listener_key(name)) is not None:
        return [name, base.name]
    return _GROUPS.get(name, [name])


def _is_read_only(declaration: Setting) -> bool:
    """Whether a key is shown as read-only. As in Kafka, keys with a listener's prefix are, although they can change."""
    return declaration.dynamic is Dynamic.READ_ONLY or declaration.name.startswith(LISTENER_PREFIX)
