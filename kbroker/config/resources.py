"""Settings of groups and of client metrics subscriptions.

Settings of consumer groups are in force (kbroker.coordinator.consumer.timing). Those of share and streams groups have
no effect, and the broker does not collect metrics from clients. The broker validates and stores them as Kafka does, so
that tools can read back what they set, and logs that they have no effect. Kafka without a telemetry receiver collects
nothing either.

Source: `GroupConfig` and `ClientMetricsConfigs` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from kbroker.config.catalogue import BROKER
from kbroker.config.load import Settings
from kbroker.config.settings import Setting
from kbroker.config.values import ConfigError, Kind
from kbroker.config.without_effect import without_effect
from wire.errors import ErrorCode, KafkaError

_SHORTEST_INTERVAL_MS, _LONGEST_INTERVAL_MS = 100, 3_600_000
_DURATION = re.compile(r"by_duration:P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.ASCII)
_MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def _reset(text: str) -> str | None:
    if text in ("earliest", "latest") or _DURATION.fullmatch(text):
        return None
    return "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."


def _of_consumers(name: str, doc: str) -> Setting:
    """A setting of consumer groups, which overrides the broker's."""
    base = BROKER[f"group.{name}"]
    return Setting(base.default, kind=base.kind, name=name, at_least=base.at_least, doc=doc, synonyms=((base.name, 1),))


_CONSUMER: Final = (
    _of_consumers("consumer.assignment.interval.ms", "Shortest time between two target assignments of the group."),
    _of_consumers("consumer.heartbeat.interval.ms", "How often the group's members send heartbeats."),
    _of_consumers("consumer.session.timeout.ms", "A member that sends no heartbeat for this long is removed."),
)
GROUP: Final = {
    one.name: one
    for one in sorted(
        (*_CONSUMER, *without_effect("group", {"share.auto.offset.reset": _reset})), key=lambda one: one.name
    )
}
CLIENT_METRICS: Final = {one.name: one for one in without_effect("client metrics")}


@contextmanager
def refusing(code: ErrorCode) -> Iterator[None]:
    """Turn a ConfigError into a KafkaError with this code."""
    try:
        yield
    except ConfigError as error:
        raise KafkaError(code, str(error)) from None


def validate_group(settings: Settings, configs: Mapping[str, str]) -> None:
    """Check a group's new settings against the bounds in the broker's settings.

    Errors  INVALID_CONFIG
    """
    for name, text in configs.items():
        declaration = GROUP.get(name)
        if declaration is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        value = _parsed(declaration, text)
        protocol, _, rest = name.partition(".")
        least, most = (f"group.{protocol}.{bound}.{rest.removeprefix('num.')}" for bound in ("min", "max"))
        if _bound(settings, least, default=value) > value:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to {least}")
        if _bound(settings, most, default=value) < value:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {most}")


def _bound(settings: Settings, key: str, *, default: int) -> int:
    value = settings.value(key) if key in BROKER else default
    assert isinstance(value, int)
    return value


def _parsed(declaration: Setting, text: str) -> int:
    """The value if it is a number; 0 for any other valid value."""
    with refusing(ErrorCode.INVALID_CONFIG):
        value = declaration.parse(text)
    return value if isinstance(value, int) and declaration.kind is Kind.INT else 0


def validate_client_metrics(configs: Mapping[str, str]) -> None:
    """Check the new settings of a client metrics subscription.

    Errors  INVALID_REQUEST for an unknown key and an interval out of bounds, INVALID_CONFIG for any other bad value
    """
    for name, text in configs.items():
        declaration = CLIENT_METRICS.get(name)
        if declaration is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        number = _parsed(declaration, text)
        if name == "interval.ms" and not _SHORTEST_INTERVAL_MS <= number <= _LONGEST_INTERVAL_MS:
            bounds = f"{_SHORTEST_INTERVAL_MS} and {_LONGEST_INTERVAL_MS} (1 hour)"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid value {text} for interval.ms, interval must be between {bounds}"
            )
        if name == "match":
            for pattern in filter(None, text.split(",")):
                if not _is_pattern(pattern):
                    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def _is_pattern(text: str) -> bool:
    """Whether a text is `<what>=<regular expression>`. The broker stores the expression and never matches it."""
    what, equals, pattern = text.partition("=")
    if not equals or what.strip() not in _MATCHED:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
