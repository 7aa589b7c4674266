"""Settings of tiered topics: accepted and refused values, and the error texts, at creation and at a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from compat.oracle.conftest import Pair
from compat.oracle.schema import Message
from compat.tiered.site import Sites

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND = 0, 1, 2
ON = {"remote.storage.enable": "true"}
OFF = {"remote.storage.enable": "false"}
ALL_WITH_IT = {"remote.log.delete.on.disable": "true"}
NO_COPIES = {"remote.log.copy.disable": "true"}
INVALID_CONFIG, INVALID_REQUEST = 40, 42
WRAPPED = (
    "Invalid value org.apache.kafka.common.config.ConfigException: ",
    " for configuration Invalid dynamic configuration",
)

Verdict = tuple[int, str | None]

CREATED: Sequence[Mapping[str, str]] = (
    {},
    {"cleanup.policy": "delete"},
    {"cleanup.policy": ""},
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"cleanup.policy": "delete,compact"},
    {"local.retention.ms": "2000", "retention.ms": "1000"},
    {"local.retention.ms": "1000", "retention.ms": "1000"},
    {"local.retention.ms": "2000", "retention.ms": "-1"},
    {"local.retention.ms": "-1"},
    {"local.retention.ms": "-1", "retention.ms": "-1"},
    {"local.retention.ms": "-2"},
    {"local.retention.ms": "-3"},
    {"local.retention.ms": "604800001"},
    {"local.retention.bytes": "2000", "retention.bytes": "1000"},
    {"local.retention.bytes": "1000", "retention.bytes": "1000"},
    {"local.retention.bytes": "2000", "retention.bytes": "-1"},
    {"local.retention.bytes": "-1", "retention.bytes": "1000"},
    {"local.retention.bytes": "-1"},
    {"local.retention.bytes": "-3"},
    {"local.retention.bytes": "2000", "retention.bytes": "1000", "local.retention.ms": "2000", "retention.ms": "1000"},
    NO_COPIES,
    {**NO_COPIES, "local.retention.ms": "1000"},
    {**NO_COPIES, "local.retention.ms": "1000", "retention.ms": "1000"},
    {**NO_COPIES, "local.retention.bytes": "1000"},
    {**NO_COPIES, "local.retention.bytes": "1000", "retention.bytes": "1000"},
    {**NO_COPIES, "local.retention.bytes": "1", "retention.bytes": "2", "local.retention.ms": "1", "retention.ms": "2"},
    {**NO_COPIES, "cleanup.policy": "compact"},
    ALL_WITH_IT,
    {"remote.storage.enable": "maybe"},
    {"remote.log.copy.disable": "1"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4", "local.retention.ms": "-1"},
)


@pytest.fixture(scope="module")
def both(sites: Sites) -> Pair:
    """Both brokers, as the `Pair` of the oracle."""
    return Pair(*(site.address for site in sites.all))


def verdicts(answers: Sequence[Message], field: str) -> Verdict:
    """The code and the text, which must be the same on both sides."""
    theirs, ours = ((answer[field][0]["ErrorCode"], answer[field][0]["ErrorMessage"]) for answer in answers)
    if (theirs[1] or "").startswith(WRAPPED[0]):
        # Stated: Kafka wraps the error in another one, whose text has no information.
        theirs = theirs[0], theirs[1].removeprefix(WRAPPED[0]).removesuffix(WRAPPED[1])
    assert ours == theirs
    return ours


def create(both: Pair, name: str, configs: Mapping[str, str], *, validate: bool = False) -> Verdict:
    listed = [{"Name": key, "Value": value} for key, value in configs.items()]
    topic = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1, "Configs": listed}
    message = {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": validate}
    return verdicts(both.call("CreateTopics", 7, message), "Topics")


def alter(both: Pair, name: str, configs: Mapping[str, str | None], *, resource: int = TOPIC) -> Verdict:
    """Set the keys with a value, delete those without."""
    listed = [
        {"Name": key, "ConfigOperation": DELETE if value is None else SET, "Value": value}
        for key, value in configs.items()
    ]
    message = {
        "Resources": [{"ResourceType": resource, "ResourceName": name, "Configs": listed}],
        "ValidateOnly": False,
    }
    return verdicts(both.call("IncrementalAlterConfigs", 1, message), "Responses")


@pytest.mark.parametrize("tiered", [True, False], ids=["tiered", "not tiered"])
@pytest.mark.parametrize("configs", CREATED, ids=lambda configs: ",".join(f"{k}={v}" for k, v in configs.items()))
def test_topic_creation_accepts_the_same_settings(
    both: Pair, new_topic_name: Callable[[str], str], configs: Mapping[str, str], tiered: bool
) -> None:
    create(both, new_topic_name("settings"), {**ON, **configs} if tiered else configs, validate=True)


@pytest.mark.parametrize("configs", CREATED, ids=lambda configs: ",".join(f"{k}={v}" for k, v in configs.items()))
def test_topic_changes_accept_the_same_settings(
    both: Pair, new_topic_name: Callable[[str], str], configs: Mapping[str, str]
) -> None:
    name = new_topic_name("changed")
    assert create(both, name, ON) == (0, None)
    alter(both, name, configs)
    alter(both, name, {**NO_COPIES, **OFF})


STORIES: Mapping[str, Sequence[tuple[Mapping[str, str | None], int]]] = {
    "disable without further settings": [(OFF, INVALID_CONFIG)],
    "disable and delete the tier": [({**OFF, **ALL_WITH_IT}, 0), (ON, 0), (OFF, 0)],
    "disable by deleting the setting": [
        ({"remote.storage.enable": None}, INVALID_CONFIG),
        ({"remote.storage.enable": None, **ALL_WITH_IT}, 0),
    ],
    "read only, then disable": [(NO_COPIES, 0), (OFF, INVALID_CONFIG), (ALL_WITH_IT, 0), (OFF, 0), (ON, 0)],
    "read only with a local retention": [
        ({"local.retention.ms": "1000"}, 0),
        (NO_COPIES, INVALID_CONFIG),
        ({**NO_COPIES, "local.retention.ms": "-2"}, 0),
        ({"local.retention.ms": "1000"}, INVALID_CONFIG),
        ({"local.retention.ms": None, "remote.log.copy.disable": None}, 0),
    ],
    "compaction": [
        ({"cleanup.policy": "compact"}, INVALID_CONFIG),
        ({"cleanup.policy": "compact", **OFF, **ALL_WITH_IT}, 0),
        (ON, INVALID_CONFIG),
        ({**ON, "cleanup.policy": "delete"}, 0),
    ],
    "a retention below the local one": [
        ({"local.retention.ms": "5000"}, 0),
        ({"retention.ms": "1000"}, INVALID_CONFIG),
        ({"retention.ms": "5000"}, 0),
        ({"retention.ms": None}, 0),
    ],
}


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES.keys())
def test_a_sequence_of_changes_is_answered_as_in_kafka(
    both: Pair, new_topic_name: Callable[[str], str], steps: Sequence[tuple[Mapping[str, str | None], int]]
) -> None:
    name = new_topic_name("row")
    assert create(both, name, ON) == (0, None)
    for changes, expected in steps:
        assert alter(both, name, changes)[0] == expected, changes


def test_tiering_an_existing_topic_keeps_its_settings(both: Pair, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("before")
    assert create(both, name, {"cleanup.policy": "compact", "local.retention.ms": "-1"}) == (0, None)
    assert alter(both, name, ON)[0] == INVALID_CONFIG
    assert alter(both, name, {**ON, "cleanup.policy": "delete"})[0] == INVALID_CONFIG
    assert alter(both, name, {**ON, "cleanup.policy": "delete", "local.retention.ms": None}) == (0, None)


@pytest.mark.parametrize(
    "configs",
    [
        {"log.local.retention.ms": "604800001"},
        {"log.local.retention.ms": "-1"},
        {"log.local.retention.bytes": "5", "log.retention.bytes": "4"},
        {"remote.log.manager.copy.max.bytes.per.second": "0"},
        {"remote.log.index.file.cache.total.size.bytes": "0"},
        {"remote.fetch.max.wait.ms": "0"},
        {"remote.log.storage.system.enable": "false"},
        {"remote.log.manager.task.interval.ms": "5"},
    ],
    ids=str,
)
def test_brokers_refuse_the_same_changes(both: Pair, configs: Mapping[str, str]) -> None:
    code, _ = alter(both, "", configs, resource=BROKER)
    assert code == INVALID_REQUEST


def test_unknown_plugin_settings_are_refused(both: Pair) -> None:
    listed = [{"Name": "rsm.config.dir", "ConfigOperation": SET, "Value": "/elsewhere"}]
    message = {
        "Resources": [{"ResourceType": BROKER, "ResourceName": "", "Configs": listed}],
        "ValidateOnly": True,
    }
    answers = both.call("IncrementalAlterConfigs", 1, message)
    assert [answer["Responses"][0]["ErrorCode"] for answer in answers] == [0, INVALID_REQUEST]


def test_brokers_accept_the_same_changes(both: Pair) -> None:
    changes = {
        "remote.log.manager.copy.max.bytes.per.second": "1000000000",
        "remote.log.manager.fetch.max.bytes.per.second": "1000000000",
        "remote.log.index.file.cache.total.size.bytes": "1000000",
        "remote.fetch.max.wait.ms": "600",
        "remote.list.offsets.request.timeout.ms": "20000",
        "remote.log.reader.threads": "8",
        "remote.log.manager.copier.thread.pool.size": "8",
        "remote.log.manager.expiration.thread.pool.size": "8",
    }
    assert alter(both, "", changes, resource=BROKER) == (0, None)
    assert alter(both, "", dict.fromkeys(changes), resource=BROKER) == (0, None)


def described(both: Pair, resource: int, name: str) -> list[dict[str, Message]]:
    """The tier settings of a resource, by key, on each side."""
    wanted = {"ResourceType": resource, "ResourceName": name, "ConfigurationKeys": None}
    message = {"Resources": [wanted], "IncludeSynonyms": True, "IncludeDocumentation": False}
    answers = both.call("DescribeConfigs", 4, message)
    return [
        {
            config["Name"]: config
            for config in answer["Results"][0]["Configs"]
            if any(word in config["Name"] for word in ("remote.", "local.retention", "rsm.", "rlmm."))
        }
        for answer in answers
    ]


def test_tiered_topic_settings_are_described_as_in_kafka(both: Pair, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("described")
    assert create(both, name, {**ON, "local.retention.ms": "1000"}) == (0, None)
    theirs, ours = described(both, TOPIC, name)
    assert len(theirs) == 5
    assert ours == theirs


def test_tiered_broker_settings_are_described_as_in_kafka(both: Pair) -> None:
    theirs, ours = described(both, BROKER, "1")
    # Stated: plug-ins have other names and settings here, the metadata manager needs no listener, and kbroker has its
    # own keys.
    for key in ("remote.log.storage.manager.class.name", "remote.log.metadata.manager.listener.name"):
        assert theirs.pop(key)["Value"]
        ours.pop(key)
    ours = {key: config for key, config in ours.items() if not key.startswith("kbroker.")}
    prefixes = ("rsm.config.", "rlmm.config.", "remote.log.storage.manager.class.path")
    assert all(
        config["IsSensitive"] and config["Value"] is None for config in ours.values() if "config." in config["Name"]
    )
    for side in (theirs, ours):
        for key in [key for key in side if key.startswith(prefixes)]:
            del side[key]
    assert len(theirs) > 20
    assert ours == theirs
