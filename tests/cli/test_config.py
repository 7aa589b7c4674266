"""`kbroker config` against a broker: descriptions, changes and refusals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.config import parse_added, parse_deleted
from tests.cli.conftest import Done, Run

Config = Callable[..., Done]


@pytest.fixture
def config(run: Run, broker: str) -> Config:
    """`config("--describe", ...)`: the command against the broker."""
    return lambda *words: run("config", "-b", broker, *words)


@pytest.fixture
def topic(run: Run, broker: str) -> Iterator[str]:
    """A topic with one setting of its own."""
    made = ["topic", "-b", broker, "--create", "--topic", "set", "--config", "retention.ms=5000"]
    for _ in range(50):  # a broker may still be deleting the one of the last test
        if run(*made).code == 0:
            break
    yield "set"
    run("topic", "-b", broker, "--delete", "--topic", "set")


def settings(config: Config, *words: object) -> dict[str, dict[str, Any]]:
    done = config("--describe", *words, "--format", "json")
    assert done.code == 0, done.err
    (entity,) = json.loads(done.out)
    return {each["name"]: each for each in entity["configs"]}


@pytest.mark.parametrize("words", [["--topic", "set"], ["--entity-type", "topics", "--entity-name", "set"]])
def test_a_topics_own_settings_are_described_in_kafkas_format(config: Config, topic: str, words: list[str]) -> None:
    done = config("--describe", *words)
    assert (done.code, done.err) == (0, "")
    head, line = done.lines
    assert head == "Dynamic configs for topic set are:"
    assert line.startswith("  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000")


def test_all_settings_are_described_with_their_sources(config: Config, topic: str) -> None:
    found = settings(config, "--topic", topic, "--all")
    assert found["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert found["segment.bytes"]["source"] == "DEFAULT_CONFIG"
    assert found["segment.bytes"]["type"] == "INT"
    assert list(found) == sorted(found)
    assert config("--describe", "--topic", topic, "--all").lines[0] == "All configs for topic set are:"


def test_settings_of_a_topic_are_changed_and_removed(config: Config, topic: str) -> None:
    words = ["--alter", "--entity-type", "topics", "--entity-name", topic]
    done = config(*words, "--add-config", "retention.ms=7,cleanup.policy=[compact,delete]", "--delete-config", "x.y")
    assert (done.code, done.out, done.err) == (1, "", "kbroker config: Invalid config(s): x.y\n")
    assert settings(config, "--topic", topic)["retention.ms"]["value"] == "5000"
    done = config(*words, "--add-config", "segment.ms=7,cleanup.policy=[compact,delete]")
    assert done == (0, "Completed updating config for topic set.\n", "")
    assert {name: each["value"] for name, each in settings(config, "--topic", topic).items()} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5000",
        "segment.ms": "7",
    }
    done = config(*words, "--delete-config", "retention.ms,segment.ms", "--delete-config", "cleanup.policy")
    assert done.code == 0
    assert settings(config, "--topic", topic) == {}


def test_settings_come_from_a_file(config: Config, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "topic.properties"
    path.write_text("# mine\nretention.ms = 11\n")
    done = config("--alter", "--topic", topic, "--add-config-file", path, "--format", "json")
    assert json.loads(done.out)["added"] == {"retention.ms": "11"}
    assert settings(config, "--topic", topic)["retention.ms"]["value"] == "11"


def test_a_brokers_setting_overrides_the_default_of_all_brokers(config: Config) -> None:
    node_id = next(
        each["entity_name"]
        for each in json.loads(config("--describe", "--entity-type", "brokers", "--format", "json").out)
        if each["entity_name"] is not None
    )
    one = ["--entity-type", "brokers", "--entity-name", node_id]
    everyone = ["--entity-type", "brokers", "--entity-default"]
    try:
        done = config("--alter", *everyone, "--add-config", "log.retention.ms=900000")
        assert done == (0, "Completed updating default config for brokers in the cluster.\n", "")
        assert config("--describe", "--broker-defaults").lines[0] == "Default configs for brokers in the cluster are:"
        assert settings(config, "--broker-defaults")["log.retention.ms"]["value"] == "900000"
        assert settings(config, *one) == {}
        assert config("--alter", "--broker", node_id, "--add-config", "log.retention.ms=800000").out == (
            f"Completed updating config for broker {node_id}.\n"
        )
        found = settings(config, *one)["log.retention.ms"]
        assert (found["value"], found["source"]) == ("800000", "DYNAMIC_BROKER_CONFIG")
        assert [each["source"] for each in found["synonyms"]][:2] == [
            "DYNAMIC_BROKER_CONFIG",
            "DYNAMIC_DEFAULT_BROKER_CONFIG",
        ]
    finally:
        config("--alter", *one, "--delete-config", "log.retention.ms")
        config("--alter", *everyone, "--delete-config", "log.retention.ms")
    assert settings(config, "--broker-defaults") == {}


def test_every_topic_is_described_when_none_is_named(config: Config, topic: str) -> None:
    assert "Dynamic configs for topic set are:" in config("--describe", "--entity-type", "topics").lines


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--describe", "--topic", "nowhere"], "topic 'nowhere' does not exist"),
        (["--alter", "--topic", "nowhere", "--add-config", "retention.ms=1"], "topic 'nowhere' does not exist"),
        (["--alter", "--topic", "set", "--add-config", "nonsense=1"], "Unknown topic config name: nonsense"),
        (["--alter", "--topic", "set", "--add-config", "retention.ms=soon"], "retention.ms"),
        (["--describe", "--broker", "77"], "broker 77 does not exist; the brokers are "),
    ],
)
def test_a_failure_is_one_line(config: Config, topic: str, words: list[str], reason: str) -> None:
    done = config(*words)
    assert (done.code, done.out) == (1, "")
    assert reason in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("", "contains no settings"),
        ("a b=1\\u00g", "cannot read"),
        ("a/b=1", "Invalid character"),
    ],
)
def test_an_unusable_settings_file_is_an_error(run: Run, tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "topic.properties"
    if content is not None:
        path.write_text(content)
    done = run("config", "--alter", "--topic", "t", "--add-config-file", path)
    assert (done.code, done.out) == (1, "")
    assert reason in done.err


def test_values_may_hold_commas_and_equals_signs_in_brackets() -> None:
    assert parse_added("a=1, b = [2,3=4] ,c=") == {"a": "1", "b": "2,3=4", "c": ""}
    assert parse_deleted("a, b.c") == ["a", "b.c"]


@pytest.mark.parametrize("text", ["", "a", "a=1,", "a=b=c", "=1", "a b=1", "a=1,,b=2", "ä=1"])
def test_malformed_settings_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_added(text)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "one of the arguments --describe --alter is required"),
        (["--describe"], "one --entity-type is required, of topics, brokers"),
        (["--describe", "--topic", "t", "--group", "g"], "one --entity-type is required"),
        (["--describe", "--entity-name", "t"], "--entity-name and --entity-default require --entity-type"),
        (["--describe", "--entity-type", "tables"], "invalid choice: 'tables'"),
        (["--describe", "--entity-type", "users"], "does not support quotas and credentials of users"),
        (
            ["--describe", "--entity-type", "topics", "--entity-default"],
            "can be used only with brokers, not with topics",
        ),
        (["--describe", "--entity-type", "brokers", "--entity-name", "x"], "must be the id of a broker, found: x"),
        (["--describe", "--entity-type", "brokers", "--entity-name", "1", "--entity-default"], "cannot be used with"),
        (["--describe", "--topic", ""], "argument --topic: the name is empty"),
        (["--describe", "--topic", "t", "--add-config", "a=1"], "--add-config cannot be used with --describe"),
        (["--alter", "--topic", "t"], "--alter requires --add-config, --add-config-file or --delete-config"),
        (["--alter", "--entity-type", "topics", "--add-config", "a=1"], "--alter requires --entity-name"),
        (["--alter", "--topic", "t", "--all", "--add-config", "a=1"], "--all cannot be used with --alter"),
        (["--alter", "--topic", "t", "--add-config", "a=1", "--delete-config", "a"], "both added and deleted"),
        (["--alter", "--topic", "t", "--add-config", "a=1", "--add-config-file", "f"], "cannot be used with --add"),
        (["--alter", "--topic", "t", "--add-config", "a"], 'must be in the format "key=val"'),
        (["--alter", "--topic", "t", "--delete-config", "a,"], "Invalid character found for config key"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_reason(run: Run, words: list[str], reason: str) -> None:
    done = run("config", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
