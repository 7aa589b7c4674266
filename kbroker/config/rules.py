"""Validates the settings in CreateTopics and IncrementalAlterConfigs requests.

Where Kafka refuses a setting too, the message is Kafka's. kbroker refuses two more things: an unknown broker key, which
Kafka stores, and a value whose effect is not implemented. Source: `LogConfig.validate` and
`DynamicBrokerConfig.validateConfigs` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from kbroker.config.catalogue import BROKER, TOPIC, broker_setting, unknown
from kbroker.config.describe import describe_topic
from kbroker.config.load import Remark, Settings, as_lines, remarks
from kbroker.config.resources import CLIENT_METRICS, GROUP, refusing, validate_client_metrics, validate_group
from kbroker.config.server import EVERYBODY_OUT, keeps_everybody_out
from kbroker.config.settings import Dynamic, Setting
from kbroker.config.tier_rules import check_local_retention, check_tiered_topic
from kbroker.config.values import ConfigError, Kind, as_boolean
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import DescribeConfigsResourceResult as Entry

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32

_OWN_SETTINGS: Final = {TOPIC_RESOURCE: TOPIC, CLIENT_METRICS_RESOURCE: CLIENT_METRICS, GROUP_RESOURCE: GROUP}
"""Settings by type of resource, without those of brokers."""


class DynamicConfigs(Protocol):
    """Provides the stored dynamic settings of brokers. The metadata image implements it."""

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """The settings of one broker; for None, those of all brokers."""


class ConfigRules:
    """The validation rules of a broker that was started with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._described: tuple[tuple[Mapping[str, str], ...], Sequence[Entry]] = ((), ())

    def validate_topic(self, configs: Mapping[str, str], previous: Mapping[str, str]) -> None:
        """Check a topic's new settings. Unchanged settings are not checked again.

        Errors  INVALID_CONFIG
        """
        for name, text in configs.items():
            if previous.get(name) != text:
                _check_topic_setting(name, text)
        _check_compaction_lags(configs)
        if "remote.storage.enable" in configs or "remote.storage.enable" in previous:
            self._check_tier(configs, previous)

    def _check_tier(self, configs: Mapping[str, str], previous: Mapping[str, str]) -> None:
        was_tiered = as_boolean(previous.get("remote.storage.enable", "")) is True
        has_system = self._settings.tier.remote_log_storage_system_enable
        with refusing(ErrorCode.INVALID_CONFIG):
            check_tiered_topic(self._settings.topic_values(configs), was_tiered=was_tiered, has_system=has_system)

    def validate_broker(self, configs: Mapping[str, str], previous: Mapping[str, str], *, per_broker: bool) -> None:
        """Check the new dynamic settings of one broker, or of all brokers.

        Errors  INVALID_REQUEST if Kafka refuses too; INVALID_CONFIG if only kbroker refuses
        """
        changed = {name: text for name, text in configs.items() if previous.get(name) != text}
        known = {name: one for name in changed if (one := broker_setting(name)) is not None}
        for name in changed:
            if name not in known:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(unknown(name, BROKER, what="broker config name")))
        _refuse_all("Cannot update these configs dynamically", known, lambda one: one.dynamic is Dynamic.READ_ONLY)
        _refuse_all(
            "These security configs can be dynamically updated only per-listener using the listener prefix",
            known,
            lambda one: one.name.startswith("ssl."),
        )
        for name, text in changed.items():
            with refusing(ErrorCode.INVALID_REQUEST):
                known[name].parse(text)
        if not per_broker:
            _refuse_all(
                "Cannot update these configs at default cluster level, broker id must be specified",
                known,
                lambda one: one.dynamic is Dynamic.PER_BROKER,
            )
        limit, limit_per_ip, overrides = (
            BROKER[name].parse(configs[name]) if name in configs else self._settings.value(name)
            for name in ("max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides")
        )
        assert isinstance(limit, int)
        assert isinstance(limit_per_ip, int)
        assert isinstance(overrides, str)
        if keeps_everybody_out(limit, limit_per_ip, overrides):
            raise KafkaError(ErrorCode.INVALID_REQUEST, EVERYBODY_OUT)
        self._check_log_retention(configs, per_broker=per_broker)
        for name, text in changed.items():
            with refusing(ErrorCode.INVALID_CONFIG):
                list(remarks(name, known[name], text))

    def _check_log_retention(self, configs: Mapping[str, str], *, per_broker: bool) -> None:
        """Check that local retention does not exceed retention. Like Kafka, check it with or without a tier."""
        if not any(name.startswith(("log.retention.", "log.local.retention.")) for name in configs):
            return
        as_cluster, as_broker = ({}, configs) if per_broker else (configs, {})
        values = self._settings.with_dynamic(as_cluster, as_broker).log_retention()
        with refusing(ErrorCode.INVALID_REQUEST):
            for key in ("retention.ms", "retention.bytes"):
                check_local_retention(values, key, prefix="log.")

    def validate_group(self, configs: Mapping[str, str]) -> None:
        """Check a group's new settings. Errors: INVALID_CONFIG."""
        validate_group(self._settings, configs)

    def validate_client_metrics(self, configs: Mapping[str, str]) -> None:
        """Check a client metrics subscription's new settings. Errors: INVALID_REQUEST, INVALID_CONFIG."""
        validate_client_metrics(configs)

    def is_list(self, resource_type: int, key: str) -> bool:
        """Whether a key holds a list. APPEND and SUBTRACT require one."""
        declaration = _declaration(resource_type, key)
        return declaration is not None and declaration.kind is Kind.LIST

    def default(self, resource_type: int, key: str) -> str | None:
        """The base of APPEND and SUBTRACT if the key is not set: the declared default, as in Kafka."""
        declaration = _declaration(resource_type, key)
        return None if declaration is None else declaration.default_text

    def describe_topic(self, configs: Mapping[str, str], image: DynamicConfigs) -> Sequence[Entry]:
        """A topic's settings by name, over the dynamic settings of an image."""
        cluster, own = image.broker_configs(None), image.broker_configs(self._settings.node_id)
        asked = (configs, cluster, own)
        if asked != self._described[0]:
            # Cache the last answer: one request may create thousands of topics with the same settings.
            settings = self._settings.with_dynamic(cluster, own)
            self._described = (dict(configs), dict(cluster), dict(own)), describe_topic(settings, configs)
        return self._described[1]


def resource_warnings(resource_type: int, configs: Mapping[str, str]) -> list[str]:
    """Warnings about the validated settings of a topic, a group or a client metrics subscription."""
    found: list[Remark] = []
    known = _OWN_SETTINGS.get(resource_type, {})
    for name, text in configs.items():
        if (declaration := known.get(name)) is not None:
            try:
                found.extend(remarks(name, declaration, text))
            except ConfigError as error:
                found.append(Remark(name, f"is ignored: {error}"))
    return as_lines(found)


def _declaration(resource_type: int, key: str) -> Setting | None:
    if resource_type == BROKER_RESOURCE:
        return broker_setting(key)
    return _OWN_SETTINGS.get(resource_type, {}).get(key)


def _check_topic_setting(name: str, text: str) -> None:
    if (declaration := TOPIC.get(name)) is None:
        # Kafka's message, which some tools compare, then kbroker's suggestion.
        hint = str(unknown(name, TOPIC)).partition("; did you mean ")[2]
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}" + (f"; did you mean {hint}" if hint else "")
        )
    with refusing(ErrorCode.INVALID_CONFIG):
        declaration.parse(text)


def _check_compaction_lags(configs: Mapping[str, str]) -> None:
    shortest, longest = (
        TOPIC[name].parse(configs[name]) if name in configs else TOPIC[name].default
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
        )


def _refuse_all(why: str, known: Mapping[str, Setting], bad: Callable[[Setting], bool]) -> None:
    names: Iterable[str] = sorted(name for name, one in known.items() if bad(one))
    if listed := ", ".join(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{why}: [{listed}]")
