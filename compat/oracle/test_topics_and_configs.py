"""CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.oracle.conftest import Pair, Topic, await_leaders, same, soon_same
from compat.oracle.schema import Message

TOPIC, BROKER, GROUP, BROKER_LOGGER = 2, 4, 32, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def creation(name: str, *, partitions: int = 1, replication: int = 1, **more: Any) -> Message:
    return {"Name": name, "NumPartitions": partitions, "ReplicationFactor": replication, **more}


def create(*topics: Message, validate: bool = False) -> Message:
    return {"Topics": list(topics), "timeoutMs": 10_000, "validateOnly": validate}


def sorted_configs(answers: list[Message], *, known: set[str] | None = None) -> list[Message]:
    """The settings of a created topic by name: Kafka lists them in the order of a hash table."""
    for answer in answers:
        for topic in answer["Topics"]:
            if topic.get("Configs"):
                topic["Configs"].sort(key=lambda config: config["Name"])
                if known:
                    topic["Configs"] = [config for config in topic["Configs"] if config["Name"] in known]
    return answers


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    message = create(creation(new_topic_name("created"), partitions=2))
    same(sorted_configs(pair.call("CreateTopics", version, message)))
    again = same(pair.call("CreateTopics", version, message))
    assert again["Topics"][0]["ErrorCode"] == 36


ASSIGNED = [{"PartitionIndex": 0, "BrokerIds": [1]}, {"PartitionIndex": 1, "BrokerIds": [1]}]
WRONG = {
    "no partitions": creation("t-0", partitions=0),
    "minus two partitions": creation("t-0", partitions=-2),
    "replication factor 0": creation("t-0", replication=0),
    "replication factor 2 on one broker": creation("t-0", replication=2),
    "replication factor -2": creation("t-0", replication=-2),
    "two dots": creation(".."),
    "one dot": creation("."),
    "a slash": creation("../x"),
    "nothing": creation(""),
    "250 characters": creation("x" * 250),
    "NUL": creation("nul\0"),
    "a space": creation("a b"),
    "an unknown setting": creation("t-0", Configs=[{"Name": "no.such.setting", "Value": "1"}]),
    "a setting out of range": creation("t-0", Configs=[{"Name": "segment.bytes", "Value": "-1"}]),
    "a setting that is no number": creation("t-0", Configs=[{"Name": "retention.ms", "Value": "soon"}]),
    "a setting of no such kind": creation("t-0", Configs=[{"Name": "cleanup.policy", "Value": "burn"}]),
    "a null setting": creation("t-0", Configs=[{"Name": "retention.ms", "Value": None}]),
    "assignments and a count": creation("t-0", partitions=2, replication=-1, Assignments=ASSIGNED),
    "assignments and a replication factor": creation("t-0", partitions=-1, replication=1, Assignments=ASSIGNED),
    "an assignment to an unknown broker": creation(
        "t-0", partitions=-1, replication=-1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [77]}]
    ),
    "an assignment that begins at 1": creation(
        "t-0", partitions=-1, replication=-1, Assignments=[{"PartitionIndex": 1, "BrokerIds": [1]}]
    ),
    "an assignment to no broker": creation(
        "t-0", partitions=-1, replication=-1, Assignments=[{"PartitionIndex": 0, "BrokerIds": []}]
    ),
    "an assignment twice to one broker": creation(
        "t-0", partitions=-1, replication=-1, Assignments=[{"PartitionIndex": 0, "BrokerIds": [1, 1]}]
    ),
}


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("topic", WRONG.values(), ids=WRONG.keys())
def test_x5_a_wrong_creation_fails_as_in_kafka(pair: Pair, topic: Message, validate: bool) -> None:
    answer = same(pair.call("CreateTopics", 7, create(topic, validate=validate)))
    assert answer["Topics"][0]["ErrorCode"] != 0


def test_w11_more_than_ten_thousand_partitions_are_refused(pair: Pair) -> None:
    same(pair.call("CreateTopics", 7, create(creation("t-0", partitions=10_001))))


def test_x5_names_that_differ_in_a_dot_collide(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("a.b")
    pair.create(name)
    answer = same(pair.call("CreateTopics", 7, create(creation(name.replace("a.b", "a_b")))))
    assert answer["Topics"][0]["ErrorCode"] == 17


def test_one_name_twice_in_a_request_fails_as_in_kafka(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    name, other = new_topic_name("twice"), new_topic_name("other")
    answers = pair.call("CreateTopics", 7, create(creation(name), creation(other), creation(name)))
    for answer in answers:
        answer["Topics"].sort(key=lambda topic: topic["Name"])
    same(sorted_configs(answers))


def test_validate_only_creates_nothing(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("validated")
    same(sorted_configs(pair.call("CreateTopics", 7, create(creation(name), validate=True))))
    answer = same(pair.call("Metadata", 9, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}))
    assert answer["Topics"][0]["ErrorCode"] == 3


def test_assignments_settings_and_defaults_are_applied(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    settings = [{"Name": "retention.ms", "Value": "1000"}, {"Name": "cleanup.policy", "Value": "delete"}]
    for topic in (
        creation(new_topic_name("assigned"), partitions=-1, replication=-1, Assignments=ASSIGNED),
        creation(new_topic_name("settings"), Configs=settings),
        creation(new_topic_name("defaults"), partitions=-1, replication=-1),
    ):
        answer = same(sorted_configs(pair.call("CreateTopics", 7, create(topic))))
        assert answer["Topics"][0]["ErrorCode"] == 0


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_in_every_version(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    topic = pair.create(new_topic_name("deleted"))
    names = [topic.name, "never-created"]
    message: Message = {"TimeoutMs": 10_000}
    message |= {"Topics": [{"Name": name} for name in names]} if version >= 6 else {"TopicNames": names}
    answers = pair.call("DeleteTopics", version, message)
    for answer in answers:
        answer["Responses"].sort(key=lambda each: each["Name"])
    same(answers)


def test_topics_are_deleted_by_id(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("deleted"))
    for wanted in (lambda side: topic.ids[side], lambda _: b"\x07" * 16, lambda side: topic.ids[side]):
        same(
            pair.call(
                "DeleteTopics",
                6,
                lambda side, wanted=wanted: {"TimeoutMs": 10_000, "Topics": [{"Name": None, "TopicId": wanted(side)}]},
            )
        )


def growth(topic: str, count: int, *, assignments: list[list[int]] | None = None, validate: bool = False) -> Message:
    chosen = None if assignments is None else [{"BrokerIds": brokers} for brokers in assignments]
    return {
        "Topics": [{"Name": topic, "Count": count, "Assignments": chosen}],
        "TimeoutMs": 10_000,
        "ValidateOnly": validate,
    }


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    topic = pair.create(new_topic_name("grown"), partitions=2)
    for message in (
        growth(topic.name, 2),
        growth(topic.name, 1),
        growth(topic.name, 0),
        growth(topic.name, -1),
        growth("never-created", 3),
        growth(topic.name, 4, assignments=[[1]]),
        growth(topic.name, 3, assignments=[[77]]),
        growth(topic.name, 3, assignments=[[1, 1]]),
        growth(topic.name, 3, validate=True),
        growth(topic.name, 3),
        growth(topic.name, 4, assignments=[[1]]),
        growth(topic.name, 4),
    ):
        same(pair.call("CreatePartitions", version, message))
    for address in pair.addresses:
        await_leaders(address, topic.name, 4)


def resource(kind: int, name: str, *keys: str) -> Message:
    return {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": list(keys) or None}


@pytest.fixture(scope="module")
def configured(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    settings = {"retention.ms": "86400000", "segment.bytes": "2097152", "max.message.bytes": "1048588"}
    return pair.create(new_topic_name("configured"), configs=settings)


def by_name(answers: list[Message]) -> list[dict[str, Message]]:
    return [{config["Name"]: config for config in answer["Results"][0]["Configs"]} for answer in answers]


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("synonyms", [False, True])
@pytest.mark.parametrize("documented", [False, True])
def test_every_topic_setting_is_described_as_kafka_describes_it(
    pair: Pair, configured: Topic, version: int, synonyms: bool, documented: bool
) -> None:
    message: Message = {"Resources": [resource(TOPIC, configured.name)], "IncludeSynonyms": synonyms}
    if version >= 3:
        message["IncludeDocumentation"] = documented
    theirs, ours = by_name(pair.call("DescribeConfigs", version, message))
    assert sorted(ours) == sorted(theirs)
    for name, config in theirs.items():
        for described in (config, ours[name]):
            if described.get("Documentation"):
                described["Documentation"] = "reported"
        same([config, ours[name]])


@pytest.mark.parametrize(
    "wanted",
    [
        resource(TOPIC, "never-created"),
        resource(TOPIC, "../x"),
        resource(TOPIC, ""),
        resource(BROKER, "77"),
        resource(BROKER, "one"),
        resource(99, "x"),
        resource(0, "x"),
    ],
    ids=str,
)
def test_invalid_descriptions_fail_as_in_kafka(pair: Pair, wanted: Message) -> None:
    same(pair.call("DescribeConfigs", 4, {"Resources": [wanted]}))


def test_only_requested_keys_are_described(pair: Pair, configured: Topic) -> None:
    wanted = resource(TOPIC, configured.name, "retention.ms", "no.such.setting", "cleanup.policy")
    answers = pair.call("DescribeConfigs", 4, {"Resources": [wanted], "IncludeSynonyms": True})
    for answer in answers:
        answer["Results"][0]["Configs"].sort(key=lambda config: config["Name"])
    same(answers)


def node_id(pair: Pair, side: int) -> str:
    from compat.oracle.raw import connected  # noqa: PLC0415

    with connected(pair.addresses[side]) as connection:
        return str(connection.call("Metadata", 1, {"Topics": []})["Brokers"][0]["NodeId"])


# Dynamic settings of a broker that some tools and every dashboard read.
BROKER_KEYS = [
    "log.retention.ms",
    "message.max.bytes",
    "num.partitions",
    "min.insync.replicas",
    "log.segment.bytes",
    "compression.type",
]


@pytest.mark.parametrize("key", BROKER_KEYS)
def test_a_brokers_setting_is_described_as_kafka_describes_it(pair: Pair, key: str) -> None:
    def message(side: int) -> Message:
        return {"Resources": [resource(BROKER, node_id(pair, side), key)], "IncludeSynonyms": True}

    theirs, ours = by_name(pair.call("DescribeConfigs", 4, message))
    same([theirs, ours])


def alter(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> Message:
    configs = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes]
    return {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": configs}], "ValidateOnly": validate}


CHANGES: list[list[tuple[str, int, str | None]]] = [
    [("retention.ms", SET, "1000")],
    [("retention.ms", SET, "soon")],
    [("retention.ms", SET, "-2")],
    [("retention.ms", DELETE, None)],
    [("no.such.setting", SET, "1")],
    [("no.such.setting", DELETE, None)],
    [("cleanup.policy", APPEND, "delete")],
    [("cleanup.policy", SUBTRACT, "delete")],
    [("cleanup.policy", APPEND, "burn")],
    [("retention.ms", APPEND, "1")],
    [("retention.ms", SET, None)],
    [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
    [("retention.ms", SET, "5"), ("segment.bytes", SET, "0")],
    [],
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_topic_settings_are_altered_as_kafka_alters_them(
    pair: Pair, new_topic_name: Callable[[str], str], version: int, changes: list[tuple[str, int, str | None]]
) -> None:
    topic = pair.create(new_topic_name("altered"), configs={"retention.ms": "77", "cleanup.policy": "delete"})
    same(pair.call("IncrementalAlterConfigs", version, alter(TOPIC, topic.name, *changes, validate=True)))
    same(pair.call("IncrementalAlterConfigs", version, alter(TOPIC, topic.name, *changes)))
    wanted = resource(TOPIC, topic.name, "retention.ms", "cleanup.policy", "segment.bytes")
    soon_same(lambda: list(by_name(pair.call("DescribeConfigs", 4, {"Resources": [wanted], "IncludeSynonyms": True}))))


def test_an_unknown_operation_is_an_invalid_request(pair: Pair, configured: Topic) -> None:
    """A stated difference: in Kafka an exception escapes, and it answers UNKNOWN_SERVER_ERROR."""
    theirs, ours = pair.call("IncrementalAlterConfigs", 1, alter(TOPIC, configured.name, ("retention.ms", 9, "1")))
    assert theirs["Responses"][0]["ErrorCode"] == -1
    assert ours["Responses"][0]["ErrorCode"] in {-1, 42}


@pytest.mark.parametrize(
    "target", [(TOPIC, "never-created"), (TOPIC, "../x"), (BROKER, "77"), (BROKER, "one"), (99, "x")], ids=str
)
def test_missing_resources_cannot_be_altered(pair: Pair, target: tuple[int, str]) -> None:
    same(pair.call("IncrementalAlterConfigs", 1, alter(*target, ("retention.ms", SET, "1"))))


def test_one_resource_twice_in_a_request_is_refused(pair: Pair, configured: Topic) -> None:
    message = alter(TOPIC, configured.name, ("retention.ms", SET, "1"))
    message["Resources"] *= 2
    same(pair.call("IncrementalAlterConfigs", 1, message))


def test_a_cluster_wide_default_is_listed_as_a_synonym(pair: Pair, configured: Topic) -> None:
    changed = ("log.retention.ms", SET, "123456")
    same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER, "", changed)))
    try:
        wanted = resource(TOPIC, configured.name, "retention.ms")
        for _ in range(200):
            answers = pair.call("DescribeConfigs", 4, {"Resources": [wanted], "IncludeSynonyms": True})
            if all(len(answer["Results"][0]["Configs"][0]["Synonyms"]) == 2 for answer in answers):
                break
        same(answers)
    finally:
        same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER, "", ("log.retention.ms", DELETE, None))))
