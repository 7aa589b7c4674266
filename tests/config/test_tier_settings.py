"""Settings of the tier: sources, secrecy and contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.catalogue import TOPIC
from kbroker.config.describe import describe_broker
from kbroker.config.rules import ConfigRules
from kbroker.config.settings import declarations
from kbroker.config.tier_rules import KEPT_REMOTE_DATA, NO_SYSTEM, WRONG_POLICY
from kbroker.storage.log_config import LogConfig
from kbroker.tiered.minio_settings import MinioSettings
from wire.errors import ErrorCode, KafkaError

TIERED = {"remote.storage.enable": "true"}
SECRET = "swordfish"


def refusal(
    configs: Mapping[str, str], previous: Mapping[str, str] | None = None, *, settings: Settings | None = None
) -> str | None:
    """The error for a topic's settings; None if they are accepted."""
    try:
        ConfigRules(settings or Settings.load()).validate_topic(configs, previous or {})
    except KafkaError as error:
        return error.message if error.code is ErrorCode.INVALID_CONFIG else error.code.name
    return None


def test_a_settings_file_turns_the_default_tier_off() -> None:
    assert Settings.load().tier.remote_log_storage_system_enable
    assert not Settings.load(b"").tier.remote_log_storage_system_enable
    assert Settings.load(b"remote.log.storage.system.enable=true").tier.remote_log_storage_system_enable
    assert Settings.load(b"", overrides=["remote.log.storage.system.enable=true"]).tier.remote_log_storage_system_enable
    assert not Settings.load(profile="kafka").tier.remote_log_storage_system_enable


def test_a_plugins_keys_lose_their_prefix_and_stay_hidden() -> None:
    variables = {"KAFKA_RSM_CONFIG_SECRET___KEY": SECRET, "KAFKA_RSM_CONFIG_BUCKET": "b"}
    settings = Settings.load(environment=variables)
    assert settings.tier.rsm_configs == {"secret-key": SECRET, "bucket": "b"}
    assert SECRET not in repr(settings.tier)
    assert not any(SECRET in line for line in settings.warnings)
    entry = {one.name: one for one in describe_broker(settings)}["rsm.config.secret-key"]
    assert entry.is_sensitive
    assert SECRET not in repr(entry)


def test_the_profiles_metadata_topic_fits_one_broker() -> None:
    embedded, test = Settings.load().tier, Settings.load(profile="test").tier
    assert (
        embedded.of_metadata_topic("topic.num.partitions"),
        embedded.of_metadata_topic("topic.replication.factor"),
        embedded.of_metadata_topic("topic.min.isr"),
    ) == (50, 1, 1)
    assert (test.of_metadata_topic("topic.num.partitions"), test.of_metadata_topic("topic.retention.ms")) == (1, -1)
    kafka = Settings.load(profile="kafka").tier
    assert (
        kafka.of_metadata_topic("topic.replication.factor"),
        kafka.of_metadata_topic("topic.min.isr"),
        kafka.of_metadata_topic("consume.wait.ms"),
    ) == (3, 2, 120_000)
    mine = Settings.load(overrides=["rlmm.config.remote.log.metadata.topic.num.partitions=7"]).tier
    assert mine.of_metadata_topic("topic.num.partitions") == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "rlmm.config.remote.log.metadata.topic.partitions=5",
            (
                "Unknown setting rlmm.config.remote.log.metadata.topic.partitions; "
                "did you mean rlmm.config.remote.log.metadata.topic.num.partitions?"
            ),
        ),
        ("rlmm.config.remote.log.metadata.topic.num.partitions=0", "Value must be at least 1"),
        ("rlmm.config.remote.log.metadata.topic.retention.ms=0", "must be -1 or at least 1"),
        ("log.local.retention.ms=-1", "Value must not be -1 as log.retention.ms value is set as 604800000."),
        ("log.local.retention.ms=604800001", "Value must not be more than log.retention.ms property value: 604800000"),
        ("log.retention.bytes=5\nlog.local.retention.bytes=6", "more than log.retention.bytes property value: 5"),
    ],
)
def test_a_broker_with_a_tier_refuses_contradictory_settings(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"Unknown|Value|must") as caught:
        Settings.load(f"remote.log.storage.system.enable=true\n{line}".encode())
    assert message in str(caught.value)
    assert Settings.load(line.encode()) is not None, "without a tier it is not read, as in Kafka"


def test_another_metadata_manager_checks_its_own_keys() -> None:
    lines = ["remote.log.metadata.manager.class.name=mine", "rlmm.config.anything=1"]
    assert Settings.load(overrides=lines).tier.rlmm_configs["anything"] == "1"


def test_client_settings_of_the_metadata_topic_cause_a_warning() -> None:
    settings = Settings.load(overrides=["rlmm.config.remote.log.metadata.producer.linger.ms=5"])
    assert any("producer.linger.ms has no effect" in line for line in settings.warnings)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({}, None),
        ({"cleanup.policy": "delete"}, None),
        ({"cleanup.policy": ""}, None),
        ({"cleanup.policy": "compact"}, WRONG_POLICY),
        ({"cleanup.policy": "compact,delete"}, WRONG_POLICY),
        (
            {"local.retention.ms": "2000", "retention.ms": "1000"},
            (
                "Invalid value 2000 for configuration local.retention.ms: "
                "Value must not be more than retention.ms property value: 1000"
            ),
        ),
        ({"local.retention.ms": "2000", "retention.ms": "-1"}, None),
        ({"local.retention.ms": "1000", "retention.ms": "1000"}, None),
        (
            {"local.retention.ms": "-1"},
            (
                "Invalid value -1 for configuration local.retention.ms: "
                "Value must not be -1 as retention.ms value is set as 604800000."
            ),
        ),
        ({"local.retention.ms": "-1", "retention.ms": "-1"}, None),
        (
            {"local.retention.bytes": "2000", "retention.bytes": "1000"},
            (
                "Invalid value 2000 for configuration local.retention.bytes: "
                "Value must not be more than retention.bytes property value: 1000"
            ),
        ),
        (
            {"local.retention.bytes": "-1", "retention.bytes": "1000"},
            (
                "Invalid value -1 for configuration local.retention.bytes: "
                "Value must not be -1 as retention.bytes value is set as 1000."
            ),
        ),
        ({"remote.log.copy.disable": "true"}, None),
        (
            {"remote.log.copy.disable": "true", "local.retention.ms": "1000"},
            (
                "When `remote.log.copy.disable` is set to true, the `local.retention.ms` and `retention.ms` must be "
                "set to the identical value because there will be no more logs copied to the remote storage."
            ),
        ),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "1000", "retention.ms": "1000"}, None),
        (
            {"remote.log.copy.disable": "true", "local.retention.bytes": "1"},
            (
                "When `remote.log.copy.disable` is set to true, the `local.retention.bytes` and `retention.bytes` must "
                "be set to the identical value because there will be no more logs copied to the remote storage."
            ),
        ),
    ],
)
def test_a_tiered_topics_settings_are_checked_together(configs: dict[str, str], message: str | None) -> None:
    assert refusal({**TIERED, **configs}) == message
    assert refusal(configs) is None, "a topic without a tier may have any of them"


def test_disabling_the_tier_requires_deletion_of_remote_data() -> None:
    off = {"remote.storage.enable": "false"}
    assert refusal(off, TIERED) == KEPT_REMOTE_DATA
    assert refusal({}, TIERED) == KEPT_REMOTE_DATA, "the default is off as well"
    assert refusal({**off, "remote.log.delete.on.disable": "true"}, TIERED) is None
    assert refusal({"remote.log.delete.on.disable": "true"}, TIERED) is None
    assert refusal(off, {}) is None


def test_no_topic_is_tiered_without_the_storage_system() -> None:
    assert refusal(TIERED, settings=Settings.load(b"")) == NO_SYSTEM


def test_the_brokers_retention_is_the_default_of_its_topics() -> None:
    settings = Settings.load(overrides=["log.retention.ms=1000"])
    assert "more than retention.ms property value: 1000" in str(
        refusal({**TIERED, "local.retention.ms": "2000"}, settings=settings)
    )
    compacting = Settings.load(overrides=["log.cleanup.policy=compact"])
    assert refusal(TIERED, settings=compacting) == WRONG_POLICY


@pytest.mark.parametrize("per_broker", [True, False])
def test_the_brokers_local_retention_must_not_exceed_its_retention(per_broker: bool) -> None:
    rules = ConfigRules(Settings.load())
    rules.validate_broker({"log.local.retention.ms": "1000"}, {}, per_broker=per_broker)
    with pytest.raises(KafkaError) as caught:
        rules.validate_broker({"log.local.retention.ms": "2000", "log.retention.ms": "1000"}, {}, per_broker=per_broker)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message == (
        "Invalid value 2000 for configuration log.local.retention.ms: "
        "Value must not be more than log.retention.ms property value: 1000"
    )


def test_quotas_and_limits_change_while_the_broker_runs() -> None:
    """KAFKA-16353: dynamic settings are applied before the tier starts."""
    changed = Settings.load().with_dynamic({"remote.log.manager.copy.max.bytes.per.second": "1000"}, {})
    assert changed.tier.remote_log_manager_copy_max_bytes_per_second == 1000
    assert changed.tier.rlmm_configs == Settings.load().tier.rlmm_configs


def test_the_log_config_has_the_tier_settings() -> None:
    configs = {**TIERED, "local.retention.bytes": "1", "kbroker.remote.flush.timestamp.ms": "5"}
    config = Settings.load().log_config(configs, LogConfig)
    assert config.remote_storage_enable
    assert (config.local_retention_bytes, config.local_retention_ms) == (1, -2)
    assert config.kbroker_remote_flush_timestamp_ms == 5


def test_the_documentation_has_every_key_of_the_tier() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tiered-storage.md").read_text()
    keys = [f"`{one.name}`" for one in declarations(MinioSettings)]
    of_topics = [name for name in TOPIC if name.startswith(("remote.", "local."))]
    assert len(of_topics) == 5
    assert [key for key in (*keys, *(f"`{name}`" for name in of_topics)) if key not in page] == []
