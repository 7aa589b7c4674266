"""Every known key by name, with or without an effect, and the error messages for unknown keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import ModuleType

from kbroker.config import (
    authorizer,
    cleaner,
    fetch,
    groups,
    limits,
    log_settings,
    metadata,
    observability,
    quotas,
    replication,
    sasl,
    security,
    server,
    tier_settings,
    tls,
    topic,
    transactions,
)
from kbroker.config.replication import THROTTLES
from kbroker.config.sasl import DYNAMIC_SECRETS
from kbroker.config.settings import Effect, Setting
from kbroker.config.values import ConfigError
from kbroker.config.without_effect import without_effect

BROKER_AREAS: tuple[ModuleType, ...] = (
    server,
    log_settings,
    cleaner,
    replication,
    metadata,
    fetch,
    limits,
    quotas,
    groups,
    transactions,
    tier_settings,
    tls,
    security,
    sasl,
    authorizer,
    observability,
)

LISTENER_PREFIX = "listener.name."
PLUGIN_PREFIXES = (tier_settings.RSM_PREFIX, tier_settings.RLMM_PREFIX)
PER_LISTENER = (
    "ssl.", "sasl.", "connections.max.reauth.", "connection.failed.authentication.",
    "kbroker.ssl.", "kbroker.sasl.", "kbroker.failed.authentication.",
)  # fmt: skip
"""Prefixes of the keys that may be set for one listener."""
_NO_LISTENER_SETTINGS = "Of the settings for one listener, only those of security are implemented."

# Keys of older Kafka releases. The error says that the key was removed and suggests no other spelling.
_REMOVED = (
    "zookeeper.",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "log.message.downconversion.enable",
    "log.message.timestamp.difference.max.ms",
    "control.plane.listener.name",
    "broker.id.generation.enable",
    "reserved.broker.max.id",
    "offsets.commit.required.acks",
    "delegation.token.master.key",
    "password.encoder.",
    "group.coordinator.new.enable",
    "message.format.version",
)


def declared(area: ModuleType) -> tuple[Setting, ...]:
    """All broker settings of one area: first the attributes of its class, then the keys without effect."""
    found: list[Setting] = []
    for one in vars(area).values():
        if isinstance(one, type) and one.__module__ == area.__name__:
            found.extend(getattr(one, "SETTINGS", ()))
    return (*found, *without_effect(area_name(area)))


def area_name(area: ModuleType) -> str:
    """The name of an area's section in docs/configuration.md and in without_effect.json."""
    return area.__name__.rpartition(".")[2].removesuffix("_settings")


BROKER: dict[str, Setting] = {one.name: one for area in BROKER_AREAS for one in declared(area)}
TOPIC: dict[str, Setting] = {one.name: one for one in topic.SETTINGS}
# Only IncrementalAlterConfigs sets these keys. As in Kafka, they cannot stand in a file, and DescribeConfigs shows them
# only where they are set.
DYNAMIC_ONLY: dict[str, Setting] = {
    one.name: one for one in (*THROTTLES, *DYNAMIC_SECRETS, *without_effect("broker, dynamic only"))
}


def broker_setting(name: str) -> Setting | None:
    """The declaration of a broker key, with or without a listener's or plug-in's prefix; None if it is unknown."""
    if (one := BROKER.get(name) or DYNAMIC_ONLY.get(name)) is not None:
        return one
    if name.startswith(PLUGIN_PREFIXES):
        return Setting(name=name, doc="A setting of a tier plug-in.")
    if (base := base_of_listener_key(name)) is not None:
        if base.effect is Effect.ENFORCED and not base.name.startswith(PER_LISTENER):
            return Setting(
                kind=base.kind, name=name, dynamic=base.dynamic, effect=Effect.REFUSED, why=_NO_LISTENER_SETTINGS
            )
        return dataclasses.replace(base, name=name)
    return None


def is_secret(name: str) -> bool:
    """Whether the value of a broker key is hidden. The value of an unknown key may be a secret."""
    declaration = broker_setting(name)
    return declaration is None or declaration.sensitive


def base_of_listener_key(name: str) -> Setting | None:
    """The declaration of `<key>` in `listener.name.<listener>.[<mechanism>.]<key>`; None for any other name."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    key = name[len(LISTENER_PREFIX) :].partition(".")[2]
    return BROKER.get(key) or BROKER.get(key.partition(".")[2])


def unknown(name: str, where: Iterable[str], *, what: str = "setting", prefix: str = "") -> ConfigError:
    """The error for an unknown key: it suggests the nearest known key, or says that Kafka removed this one."""
    if name.startswith(_REMOVED):
        return ConfigError(f"{name}: this {what} was removed in Apache Kafka 4.0; delete it")
    from difflib import get_close_matches  # noqa: PLC0415  (slow import, needed only for an error)

    near = get_close_matches(name, list(where), n=1, cutoff=0.6)
    return ConfigError(f"Unknown {what} {prefix}{name}" + (f"; did you mean {prefix}{near[0]}?" if near else ""))
