"""Validates tier settings that depend on each other, of a topic or at the start of a broker.

The order of the checks and the messages are Kafka's, except for the keys of kbroker's own plug-ins. Source:
`LogConfig.validate`, `LogConfig.validateBrokerLogConfigValues` and `DynamicLogConfig` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.config.catalogue import unknown
from kbroker.config.settings import Effect
from kbroker.config.tier_settings import METADATA_TOPIC, RLMM_PREFIX, TierSettings, metadata_topic_setting
from kbroker.config.values import ConfigError, InvalidValue, Value

NO_SYSTEM: Final = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
)
WRONG_POLICY: Final = (
    "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
)
KEPT_REMOTE_DATA: Final = (
    "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and "
    "turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
    "remote storage and delete all remote data, please set "
    "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
)
_UNEQUAL: Final = (
    "When `remote.log.copy.disable` is set to true, the `local.{0}` and `{0}` must be set to the identical value "
    "because there will be no more logs copied to the remote storage."
)
_UNLIMITED, _AS_WHOLE = -1, -2


def check_tiered_topic(values: Mapping[str, Value], *, was_tiered: bool, has_system: bool) -> None:
    """Check the tier settings of one topic, including those that it takes from the broker.

    Errors  ConfigError
    """
    if not values["remote.storage.enable"]:
        if was_tiered and not values["remote.log.delete.on.disable"]:
            raise ConfigError(KEPT_REMOTE_DATA)
        return
    if not has_system:
        raise ConfigError(NO_SYSTEM)
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise ConfigError(WRONG_POLICY)
    for key in ("retention.bytes", "retention.ms"):
        check_local_retention(values, key, prefix="")
    if values["remote.log.copy.disable"]:
        for key in ("retention.bytes", "retention.ms"):
            if values[f"local.{key}"] not in (_AS_WHOLE, values[key]):
                raise ConfigError(_UNEQUAL.format(key))


def check_local_retention(values: Mapping[str, Value], key: str, *, prefix: str) -> None:
    """Check that local retention does not exceed retention. -1 is no limit; -2 is the retention of the whole log.

    Shape   compares the values of `<prefix><key>` and `<prefix>local.<key>`
    Errors  InvalidValue
    """
    whole, local = values[f"{prefix}{key}"], values[f"{prefix}local.{key}"]
    assert isinstance(whole, int)
    assert isinstance(local, int)
    if whole <= _UNLIMITED or local == _AS_WHOLE:
        return
    if local == _UNLIMITED:
        why = f"Value must not be -1 as {prefix}{key} value is set as {whole}."
        raise InvalidValue(f"{prefix}local.{key}", local, why)
    if local > whole:
        why = f"Value must not be more than {prefix}{key} property value: {whole}"
        raise InvalidValue(f"{prefix}local.{key}", local, why)


def check_tier(tier: TierSettings, log_values: Mapping[str, Value]) -> list[str]:
    """Check the tier settings of a starting broker; return warnings as lines for the log.

    Shape   log_values has the effective log.retention.ms and .bytes, and log.local.retention.ms and .bytes
    Errors  ConfigError
    """
    if not tier.remote_log_storage_system_enable:
        return []
    for key in ("retention.bytes", "retention.ms"):
        check_local_retention(log_values, key, prefix="log.")
    if not tier.has_topic_based_metadata:
        return []
    warnings = []
    for name, text in tier.rlmm_configs.items():
        declaration = metadata_topic_setting(name)
        if declaration is None:
            raise unknown(f"{RLMM_PREFIX}{name}", [f"{RLMM_PREFIX}{known}" for known in METADATA_TOPIC])
        declaration.parse(text)
        if declaration.effect is Effect.HARMLESS:
            warnings.append(f"{RLMM_PREFIX}{name} has no effect: {declaration.why}")
    return warnings
