"""Dynamic changes have the results that Apache Kafka 4.3.1 gave for the same changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.config import Settings
from kbroker.config.describe import describe_topic
from kbroker.config.rules import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigRules, resource_warnings
from tests.config.oracle import recorded, the_recorded_node
from wire.errors import ErrorCode, KafkaError

CODES = {
    "InvalidConfigurationException": ErrorCode.INVALID_CONFIG,
    "InvalidRequestException": ErrorCode.INVALID_REQUEST,
}

# Differences from Kafka, with reasons: (resource type, key, value).
TAKEN = {
    ("TOPIC", "segment.bytes", "100"): "small segments work with a warning",
    ("BROKER", "num.io.threads", "99"): "threads have no effect, so no step is too large",
}
REFUSED = {
    ("BROKER", "nosuch.key", "5"): "unknown key",
    ("BROKER", "retention.ms", "5"): "a topic's key",
    ("BROKER", "listener.name.plaintext.max.connections", "10"): "not implemented yet",
    ("BROKER", "cordoned.log.dirs", "*"): "one log directory only",
    ("BROKER", "cordoned.log.dirs", "/nosuch"): "one log directory only",
}
OTHERWISE = {
    ("TOPIC", "retention", "1"): (
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: retention; did you mean retention.ms?",
    ),
    ("BROKER", "log.retention.ms", "0"): (
        ErrorCode.INVALID_REQUEST,
        "Invalid value 0 for configuration log.retention.ms: must be unlimited (-1) or, greater than or equal to 1",
    ),
    ("BROKER", "listeners", "PLAINTEXT://127.0.0.1:1"): (
        ErrorCode.INVALID_REQUEST,
        "Cannot update these configs dynamically: [listeners]",
    ),
}

CHANGES = [
    change
    for change in recorded("alter_configs_4.3.1.json")
    if change[2] == "SET" and change[4] is not None and change[1] in ("tuned", "1", "")
    if change[:2] != ["TOPIC", ""]
]


def check(rules: ConfigRules, kind: str, resource: str, configs: Mapping[str, str]) -> None:
    if kind == "TOPIC":
        rules.validate_topic(configs, {})
    else:
        rules.validate_broker(configs, {}, per_broker=bool(resource))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[1]} {change[3]}={change[4]}")
def test_a_change_is_answered_as_kafka_answers_it(change: list[Any]) -> None:
    kind, resource, _, key, value, answer = change
    rules = ConfigRules(the_recorded_node())
    if (kind, key, value) in TAKEN or (answer is None and (kind, key, value) not in REFUSED):
        check(rules, kind, resource, {key: value})
        return
    with pytest.raises(KafkaError) as caught:
        check(rules, kind, resource, {key: value})
    if (kind, key, value) in OTHERWISE:
        assert (caught.value.code, caught.value.message) == OTHERWISE[kind, key, value]
    elif (kind, key, value) in REFUSED and "default cluster level" not in str(answer):
        assert caught.value.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
        assert key in caught.value.message
    else:
        assert (caught.value.code, caught.value.message) == (CODES[answer[0]], answer[1])


def test_every_other_answer_was_recorded() -> None:
    recorded_changes = {(kind, key, value) for kind, _, _, key, value, _ in CHANGES}
    assert {*TAKEN, *REFUSED, *OTHERWISE} <= recorded_changes


def test_an_unchanged_setting_is_not_checked_again() -> None:
    rules = ConfigRules(Settings.load())
    stored = {"nobodys": "1", "retention.ms": "1000"}
    rules.validate_topic({**stored, "retention.ms": "2000"}, stored)
    rules.validate_broker({"nobodys": "1", "message.max.bytes": "5"}, {"nobodys": "1"}, per_broker=False)


def test_compaction_lags_must_not_contradict_each_other() -> None:
    with pytest.raises(KafkaError) as caught:
        ConfigRules(Settings.load()).validate_topic({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, {})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == (
        "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)"
    )


def test_only_lists_can_be_appended_to_starting_from_the_default() -> None:
    rules = ConfigRules(Settings.load())
    assert rules.is_list(TOPIC_RESOURCE, "cleanup.policy")
    assert not rules.is_list(TOPIC_RESOURCE, "retention.ms")
    assert not rules.is_list(TOPIC_RESOURCE, "nobodys")
    assert rules.is_list(BROKER_RESOURCE, "log.cleanup.policy")
    assert rules.default(TOPIC_RESOURCE, "cleanup.policy") == "delete"
    assert rules.default(BROKER_RESOURCE, "nobodys") is None


class _Stored:
    def __init__(self) -> None:
        self.cluster = {"log.retention.ms": "1000"}
        self.own = {"log.segment.bytes": "2000000"}

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        return self.cluster if broker_id is None else self.own


def test_a_new_topics_description_includes_the_brokers_stored_settings() -> None:
    settings = Settings.load()
    found = ConfigRules(settings).describe_topic({"retention.bytes": "5"}, _Stored())
    expected = settings.with_dynamic({"log.retention.ms": "1000"}, {"log.segment.bytes": "2000000"})
    assert found == describe_topic(expected, {"retention.bytes": "5"})
    values = {entry.name: entry.value for entry in found}
    assert (values["retention.ms"], values["segment.bytes"], values["retention.bytes"]) == ("1000", "2000000", "5")


def test_equal_topics_share_a_description_until_something_changes() -> None:
    rules = ConfigRules(Settings.load())
    stored = _Stored()
    first = rules.describe_topic({"retention.bytes": "5"}, stored)
    assert rules.describe_topic({"retention.bytes": "5"}, stored) is first

    own = {entry.name: entry.value for entry in rules.describe_topic({"retention.bytes": "6"}, stored)}
    assert own["retention.bytes"] == "6"
    stored.cluster = {"log.retention.ms": "2000"}
    stored.own = {"log.segment.bytes": "3000000"}
    values = {entry.name: entry.value for entry in rules.describe_topic({"retention.bytes": "6"}, stored)}
    assert (values["retention.ms"], values["segment.bytes"]) == ("2000", "3000000")


def test_small_segments_and_keys_without_effect_cause_warnings() -> None:
    configs = {"segment.bytes": "1000", "preallocate": "true", "retention.ms": "5"}
    lines = resource_warnings(TOPIC_RESOURCE, configs)
    assert len(lines) == 2
    assert lines[0].startswith("segment.bytes=1000 is below Kafka's minimum")
    assert not resource_warnings(TOPIC_RESOURCE, {"cleanup.policy": "compact"})
