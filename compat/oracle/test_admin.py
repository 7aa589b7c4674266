"""AlterConfigs, DescribeLogDirs, ElectLeaders, reassignments, features, ACLs, and the settings of groups, subscriptions
and loggers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.oracle.conftest import Pair, Topic, kind, same, soon_same
from compat.oracle.schema import Message, encode_request
from compat.oracle.test_topics_and_configs import alter, by_name, resource

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
UNKNOWN_TOPIC_OR_PARTITION, SECURITY_DISABLED, ELECTION_NOT_NEEDED = 3, 54, 84


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("administered"), partitions=2)


# AlterConfigs


def replace(kind_: int, name: str, *configs: tuple[str, str | None], validate: bool = False) -> Message:
    given = [{"Name": key, "Value": value} for key, value in configs]
    wanted = {"ResourceType": kind_, "ResourceName": name, "Configs": given}
    return {"Resources": [wanted], "ValidateOnly": validate}


def settings_of(pair: Pair, kind_: int, name: str, *keys: str) -> None:
    """Assert that both brokers have the same settings."""
    message = {"Resources": [resource(kind_, name, *keys)], "IncludeSynonyms": True}
    theirs, ours = by_name(pair.call("DescribeConfigs", 4, message))
    same([theirs, ours])


@pytest.mark.parametrize("version", range(3))
def test_all_settings_of_a_topic_are_replaced(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    name = pair.create(new_topic_name("replaced"), configs={"retention.ms": "77", "cleanup.policy": "delete"}).name
    for configs, validate in (
        ([("segment.ms", "5000")], True),
        ([("segment.ms", "5000")], False),
        ([("segment.ms", "5000"), ("segment.ms", "6000")], False),
        ([("segment.ms", None)], False),
        ([("no.such.setting", "1")], False),
        ([("retention.ms", "soon")], False),
        ([("segment.ms", "1"), ("retention.ms", "soon")], False),
    ):
        same(pair.call("AlterConfigs", version, replace(TOPIC, name, *configs, validate=validate)))
        settings_of(pair, TOPIC, name, "retention.ms", "cleanup.policy", "segment.ms")
    same(pair.call("AlterConfigs", version, replace(TOPIC, name)))
    settings_of(pair, TOPIC, name, "retention.ms", "cleanup.policy", "segment.ms")


@pytest.mark.parametrize(
    "message",
    [
        replace(TOPIC, "never-created", ("retention.ms", "1")),
        replace(TOPIC, "../x", ("retention.ms", "1")),
        replace(TOPIC, "", ("retention.ms", "1")),
        replace(BROKER, "77", ("log.retention.ms", "1")),
        replace(BROKER, "one", ("log.retention.ms", "1")),
        replace(BROKER, "", ("num.partitions", "1")),
        replace(BROKER_LOGGER, "1", ("root", "INFO")),
        replace(99, "x", ("a", "1")),
    ],
    ids=str,
)
def test_settings_of_missing_resources_cannot_be_replaced(pair: Pair, message: Message) -> None:
    same(pair.call("AlterConfigs", 2, message))


def test_the_defaults_of_all_brokers_are_replaced(pair: Pair) -> None:
    for configs in ([("message.max.bytes", "2000000")], [("log.retention.ms", "5000000")], []):
        same(pair.call("AlterConfigs", 2, replace(BROKER, "", *configs)))


# Settings of brokers that cannot be changed, or not in this way

REFUSED = [
    ("", "num.partitions", "3"),
    ("", "node.id", "3"),
    ("", "connections.max.idle.ms", "1000"),
    ("", "num.io.threads", "0"),
    ("", "log.retention.ms", "soon"),
    ("", "log.retention.ms", "0"),
    ("", "max.connections", "-1"),
    ("", "max.connection.creation.rate", "0"),
    ("1", "max.connections.per.ip", "0"),
    ("1", "max.connections.per.ip.overrides", "x"),
    ("", "min.insync.replicas", "0"),
    ("", "sasl.jaas.config", "x"),
    ("1", "ssl.keystore.password", "x"),
    ("", "compression.type", "middle-out"),
    ("", "compression.zstd.level", "23"),
    ("", "message.max.bytes", "-1"),
    ("", "log.cleanup.policy", "burn"),
    ("", "log.message.timestamp.type", "Sundial"),
]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("name", "key", "value"), REFUSED)
def test_a_brokers_setting_is_refused_as_kafka_refuses_it(
    pair: Pair, name: str, key: str, value: str, validate: bool
) -> None:
    answer = same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER, name, (key, SET, value), validate=validate)))
    assert answer["Responses"][0]["ErrorCode"] != 0
    settings_of(pair, BROKER, "", key)


DYNAMIC = [
    ("max.connections", "500"),
    ("max.connections.per.ip", "400"),
    ("max.connections.per.ip.overrides", "10.0.0.1:5"),
    ("max.connection.creation.rate", "1000"),
    ("message.max.bytes", "1500000"),
    ("log.message.timestamp.after.max.ms", "60000"),
    ("log.segment.bytes", "2097152"),
    ("log.retention.bytes", "100000"),
    ("compression.type", "zstd"),
    ("log.flush.interval.ms", "5000"),
    ("unclean.leader.election.enable", "true"),
    ("producer.id.expiration.ms", "5000"),
]


@pytest.mark.parametrize(("key", "value"), DYNAMIC)
def test_broker_settings_override_the_cluster_default(pair: Pair, key: str, value: str) -> None:
    def seen() -> list[Message]:
        message = {"Resources": [resource(BROKER, "1", key)], "IncludeSynonyms": True}
        theirs, ours = by_name(pair.call("DescribeConfigs", 4, message))
        for config in (theirs[key], ours[key]):
            # Kafka no longer shows the settings from its file once any was changed (docs/configuration.md).
            config["Synonyms"] = [synonym for synonym in config["Synonyms"] if synonym["Source"] != 4]
        return [theirs, ours]

    def change(broker: str, *what: tuple[str, int, str | None]) -> None:
        answer = same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER, broker, *what)))
        assert answer["Responses"][0]["ErrorCode"] == 0
        for _ in range(200):
            message = {"Resources": [resource(BROKER, broker, key)]}
            values = [found.get(key, {}).get("Value") for found in by_name(pair.call("DescribeConfigs", 4, message))]
            if values[0] == values[1]:
                break

    try:
        change("", (key, SET, value))
        soon_same(seen)
        change("1", (key, SET, value))
        soon_same(seen)
        change("", (key, DELETE, None))
        soon_same(seen)
    finally:
        change("1", (key, DELETE, None))
        change("", (key, DELETE, None))
    soon_same(seen)


# Settings of groups, subscriptions and loggers

OF_A_GROUP = {
    "consumer.session.timeout.ms": ["50000", "1", "0", "99999999", "soon"],
    "consumer.heartbeat.interval.ms": ["6000", "1", "99999"],
    "consumer.assignment.interval.ms": ["0", "-1", "99999"],
    "share.auto.offset.reset": ["earliest", "by_duration:PT1H30M", "by_duration:", "by_duration:P", "yesterday"],
    "share.delivery.count.limit": ["2", "1", "11"],
    "share.isolation.level": ["read_committed", "anything"],
    "share.partition.max.record.locks": ["100", "99", "4001"],
    "share.record.lock.duration.ms": ["15000", "14999", "60001"],
    "share.renew.acknowledge.enable": ["false", "2"],
    "streams.initial.rebalance.delay.ms": ["0", "-1"],
    "streams.num.standby.replicas": ["2", "3", "-1"],
    "streams.session.timeout.ms": ["45000", "44999"],
    "no.such.setting": ["1"],
}


@pytest.mark.parametrize(("key", "values"), OF_A_GROUP.items())
def test_a_groups_setting_is_checked_as_kafka_checks_it(pair: Pair, key: str, values: list[str]) -> None:
    for value in values:
        same(pair.call("IncrementalAlterConfigs", 1, alter(GROUP, "checked", (key, SET, value), validate=True)))


OF_A_SUBSCRIPTION = {
    "interval.ms": ["100", "99", "3600000", "3600001", "soon"],
    "match": ["client_id=.*", "client_id=a,client_software_name=b", "client_id=[", "who=x", "nothing", ""],
    "metrics": ["org.apache.kafka.,other", "*", ""],
    "no.such.setting": ["1"],
}


@pytest.mark.parametrize(("key", "values"), OF_A_SUBSCRIPTION.items())
def test_a_subscriptions_setting_is_checked_as_kafka_checks_it(pair: Pair, key: str, values: list[str]) -> None:
    for value in values:
        same(
            pair.call("IncrementalAlterConfigs", 1, alter(CLIENT_METRICS, "checked", (key, SET, value), validate=True))
        )


@pytest.fixture
def configured(pair: Pair) -> Iterator[None]:
    """A group and a subscription with one setting each."""
    changes = (
        (GROUP, "configured", "consumer.session.timeout.ms", "50000"),
        (CLIENT_METRICS, "configured", "interval.ms", "5000"),
    )
    for kind_, name, key, value in changes:
        same(pair.call("IncrementalAlterConfigs", 1, alter(kind_, name, (key, SET, value))))
    for _ in range(200):
        listed = pair.call("ListConfigResources", 1, {"ResourceTypes": [GROUP, CLIENT_METRICS]})
        if all(len(answer["ConfigResources"]) == 2 for answer in listed):
            break
    yield
    for kind_, name, key, _ in changes:
        same(pair.call("IncrementalAlterConfigs", 1, alter(kind_, name, (key, DELETE, None))))


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("documented", [True, False])
@pytest.mark.parametrize("synonyms", [True, False])
@pytest.mark.parametrize("kind_", [GROUP, CLIENT_METRICS])
def test_groups_and_subscriptions_are_described(pair: Pair, kind_: int, synonyms: bool, documented: bool) -> None:
    for name in ("configured", "never-configured", "../odd"):
        message = {
            "Resources": [resource(kind_, name)],
            "IncludeSynonyms": synonyms,
            "IncludeDocumentation": documented,
        }
        theirs, ours = by_name(pair.call("DescribeConfigs", 4, message))
        for described in (*theirs.values(), *ours.values()):
            described["Documentation"] = bool(described["Documentation"])
        same([theirs, ours])


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("version", [0, 1])
def test_resources_with_settings_are_listed(pair: Pair, version: int) -> None:
    for wanted in ([], [GROUP], [CLIENT_METRICS], [BROKER], [BROKER_LOGGER], [BROKER, GROUP], [99], [0], [GROUP, 1]):
        answers = pair.call("ListConfigResources", version, {"ResourceTypes": wanted} if version else {})
        for answer in answers:
            # The topics of other tests differ between the brokers.
            listed = [one for one in answer["ConfigResources"] if one.get("ResourceType") != TOPIC]
            answer["ConfigResources"] = sorted(listed, key=str)
        same(answers)


@pytest.mark.parametrize(
    "wanted",
    [
        resource(BROKER_LOGGER, "77"),
        resource(BROKER_LOGGER, "one"),
        resource(BROKER_LOGGER, ""),
        resource(GROUP, ""),
        resource(CLIENT_METRICS, ""),
    ],
    ids=str,
)
def test_resources_without_settings_cannot_be_described(pair: Pair, wanted: Message) -> None:
    answer = same(pair.call("DescribeConfigs", 4, {"Resources": [wanted]}))
    assert answer["Results"][0]["ErrorCode"] == 42


def test_a_logger_is_described_as_kafka_describes_its_own(pair: Pair) -> None:
    answers = pair.call("DescribeConfigs", 4, {"Resources": [resource(BROKER_LOGGER, "1")], "IncludeSynonyms": True})
    theirs, ours = (answer["Results"][0]["Configs"] for answer in answers)
    assert "root" in {config["Name"] for config in theirs} & {config["Name"] for config in ours}
    anonymous = [[{**config, "Name": "", "Value": ""} for config in side] for side in (theirs, ours)]
    assert anonymous[0][0] == anonymous[1][0]
    assert all(config == anonymous[1][0] for config in anonymous[1])


@pytest.mark.parametrize(
    ("node", "change"),
    [
        ("1", ("root", SET, "WARN")),
        ("1", ("root", SET, "LOUD")),
        ("1", ("root", SET, None)),
        ("1", ("root", DELETE, None)),
        ("1", ("root", APPEND, "INFO")),
        ("1", ("no.such.logger", SET, "INFO")),
        ("1", ("no.such.logger", DELETE, None)),
        ("77", ("root", SET, "INFO")),
        ("one", ("root", SET, "INFO")),
        ("", ("root", SET, "INFO")),
    ],
)
def test_a_loggers_level_is_changed_as_in_kafka(pair: Pair, node: str, change: tuple[str, int, str | None]) -> None:
    for validate in (True, False):
        same(pair.call("IncrementalAlterConfigs", 1, alter(BROKER_LOGGER, node, change, validate=validate)))


# Log directories


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directories_are_described(pair: Pair, topic: Topic, version: int) -> None:
    def message(*partitions: int) -> Message:
        named = {"Topic": topic.name, "Partitions": list(partitions)}
        return {"Topics": [named, {"Topic": "never-created", "Partitions": [0]}]}

    nothing: Message = {"Topics": []}
    for wanted in (message(0, 1), message(1, 7), message(), nothing):
        answers = pair.call("DescribeLogDirs", version, wanted)
        for answer in answers:
            (directory,) = answer["Results"]
            assert directory.pop("LogDir").startswith("/")
            if version >= 4:
                assert 0 < directory.pop("UsableBytes") <= directory.pop("TotalBytes")
        same(answers)
    everything = pair.call("DescribeLogDirs", version, {"Topics": None})
    for answer in everything:
        named = [one for one in answer["Results"][0]["Topics"] if one["Name"] == topic.name]
        assert sorted(partition["PartitionIndex"] for partition in named[0]["Partitions"]) == [0, 1]
        assert "__cluster_metadata" not in {one["Name"] for one in answer["Results"][0]["Topics"]}


# Elections and reassignments


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("election", [0, 1, 2, -1])
def test_a_led_partition_needs_no_election(pair: Pair, topic: Topic, version: int, election: int) -> None:
    def message(partitions: list[Message] | None) -> Message:
        chosen = {"ElectionType": election} if version else {}
        return {"TopicPartitions": partitions, "TimeoutMs": 5000, **chosen}

    named = [{"Topic": topic.name, "Partitions": [0, 5, 0]}, {"Topic": "never-created", "Partitions": [0]}]
    answer = same(pair.call("ElectLeaders", version, message(named)))
    if version == 0 or election in (0, 1):
        codes = [one["ErrorCode"] for one in answer["ReplicaElectionResults"][0]["PartitionResult"]]
        assert codes == [ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED]
    same(pair.call("ElectLeaders", version, message([])))
    everything = pair.call("ElectLeaders", version, message(None))
    for answer in everything:
        # The other topics differ between the brokers; each of them is named, without a partition.
        assert not any(one["PartitionResult"] for one in answer["ReplicaElectionResults"])
        topics = {one["Topic"] for one in answer.pop("ReplicaElectionResults")}
        assert (topic.name in topics) == (version == 0 or election in (0, 1))
    same(everything)


def reassignment(name: str, *partitions: tuple[int, list[int] | None], **more: Any) -> Message:
    listed = [{"PartitionIndex": index, "Replicas": replicas} for index, replicas in partitions]
    return {"TimeoutMs": 5000, "Topics": [{"Name": name, "Partitions": listed}], **more}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("replicas", [[1], [2], [1, 2], [2, 1], [], [1, 1], [-1], None], ids=str)
def test_a_reassignment_is_answered_as_by_kafka_on_one_broker(
    pair: Pair, topic: Topic, version: int, replicas: list[int] | None
) -> None:
    same(pair.call("AlterPartitionReassignments", version, reassignment(topic.name, (0, replicas), (1, [1]))))
    same(pair.call("AlterPartitionReassignments", version, reassignment(topic.name, (7, replicas))))
    same(pair.call("AlterPartitionReassignments", version, reassignment("never-created", (0, replicas))))
    if version:
        message = reassignment(topic.name, (0, replicas), AllowReplicationFactorChange=False)
        same(pair.call("AlterPartitionReassignments", version, message))


def test_an_empty_reassignment_succeeds(pair: Pair, topic: Topic) -> None:
    same(pair.call("AlterPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": []}))
    same(pair.call("AlterPartitionReassignments", 0, reassignment(topic.name)))


def test_no_reassignments_are_listed(pair: Pair, topic: Topic) -> None:
    named = [{"Name": topic.name, "PartitionIndexes": [0, 9]}, {"Name": "never-created", "PartitionIndexes": [0]}]
    for topics in (None, [], named):
        same(pair.call("ListPartitionReassignments", 0, {"Topics": topics, "TimeoutMs": 5000}))


# Producers, brokers, features, access control


def test_producers_of_empty_and_unknown_partitions_are_described(pair: Pair, topic: Topic) -> None:
    names = [(topic.name, [0, 5]), ("never-created", [0]), ("../x", [0])]
    message = {"Topics": [{"Name": name, "PartitionIndexes": indexes} for name, indexes in names]}
    same(pair.call("DescribeProducers", 0, message))


@pytest.mark.parametrize("node", [77, -1])
def test_an_unknown_broker_cannot_be_unregistered(pair: Pair, node: int) -> None:
    answer = same(pair.call("UnregisterBroker", 0, {"BrokerId": node}))
    assert answer["ErrorCode"] == 102


UPGRADE, SAFE, UNSAFE = 1, 2, 3
FEATURES = [
    [],
    [("metadata.version", 21, UPGRADE)],
    [("metadata.version", 21, UPGRADE)] * 2,
    [("metadata.version", 22, UPGRADE)],
    [("metadata.version", 30, UPGRADE)],
    [("metadata.version", 30, UPGRADE), ("transaction.version", 2, UPGRADE)],
    [("metadata.version", 99, UPGRADE)],
    [("metadata.version", 20, UPGRADE)],
    [("metadata.version", 20, SAFE)],
    [("metadata.version", 17, UNSAFE)],
    [("metadata.version", 16, SAFE)],
    [("metadata.version", 16, UNSAFE)],
    [("metadata.version", 5, UNSAFE)],
    [("metadata.version", 22, SAFE)],
    [("metadata.version", 21, 0)],
    [("metadata.version", 21, 7)],
    [("metadata.version", -1, UPGRADE)],
    [("kraft.version", 0, UPGRADE)],
    [("bogus", 1, UPGRADE)],
    [("bogus", 1, UPGRADE), ("metadata.version", 21, UPGRADE)],
]


@pytest.mark.parametrize("updates", FEATURES, ids=str)
@pytest.mark.parametrize("version", [1, 2])
def test_features_are_updated_as_in_kafka(pair: Pair, version: int, updates: list[tuple[str, int, int]]) -> None:
    listed = [{"Feature": name, "MaxVersionLevel": level, "UpgradeType": kind_} for name, level, kind_ in updates]
    same(pair.call("UpdateFeatures", version, {"timeoutMs": 5000, "FeatureUpdates": listed, "ValidateOnly": True}))


@pytest.mark.parametrize("downgrade", [False, True])
@pytest.mark.parametrize(("name", "level"), [("metadata.version", 20), ("metadata.version", 99), ("bogus", 1)])
def test_the_first_version_of_update_features_cannot_lower_a_level(
    pair: Pair, name: str, level: int, downgrade: bool
) -> None:
    update = {"Feature": name, "MaxVersionLevel": level, "AllowDowngrade": downgrade}
    answer = same(pair.call("UpdateFeatures", 0, {"timeoutMs": 5000, "FeatureUpdates": [update]}))
    assert answer["ErrorCode"] == 95


def test_features_that_are_not_implemented_are_refused(pair: Pair) -> None:
    """A stated difference: Kafka implements them."""
    for name, level in (
        ("kraft.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
    ):
        update = {"Feature": name, "MaxVersionLevel": level, "UpgradeType": UPGRADE}
        message = {"timeoutMs": 5000, "FeatureUpdates": [update], "ValidateOnly": True}
        theirs, ours = pair.call("UpdateFeatures", 1, message)
        assert theirs["ErrorCode"] == 0
        assert ours["ErrorCode"] == 95
        assert bool(ours["ErrorMessage"])


FILTER = {
    "ResourceTypeFilter": 1,
    "ResourceNameFilter": None,
    "PatternTypeFilter": 1,
    "PrincipalFilter": None,
    "HostFilter": None,
    "Operation": 1,
    "PermissionType": 1,
}
ENTRY = {
    "ResourceType": 2,
    "ResourceName": "a",
    "ResourcePatternType": 3,
    "Principal": "User:x",
    "Host": "*",
    "Operation": 3,
    "PermissionType": 3,
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_access_control_is_disabled(pair: Pair, version: int) -> None:
    described = same(pair.call("DescribeAcls", version, {**FILTER, "PatternTypeFilter": 3}))
    assert described["ErrorCode"] == SECURITY_DISABLED
    for entries in ([], [ENTRY], [ENTRY, {**ENTRY, "ResourceType": 99}]):
        same(pair.call("CreateAcls", version, {"Creations": entries}))
    for filters in ([], [{**FILTER, "PatternTypeFilter": 3}] * 2):
        same(pair.call("DeleteAcls", version, {"Filters": filters}))


@pytest.mark.parametrize("field", ["ResourceTypeFilter", "PatternTypeFilter", "Operation", "PermissionType"])
def test_a_filter_of_an_unknown_kind_gets_no_answer(pair: Pair, field: str) -> None:
    wrong = {**FILTER, field: 0}
    for api, message in (("DescribeAcls", wrong), ("DeleteAcls", {"Filters": [wrong]})):
        theirs, ours = pair.ask(encode_request(api, 3, message))
        assert kind(theirs) == kind(ours) == "close"


@pytest.mark.parametrize("field", ["ResourceType", "ResourcePatternType", "Operation", "PermissionType"])
def test_an_entry_of_an_unknown_kind_gets_no_answer(pair: Pair, field: str) -> None:
    theirs, ours = pair.ask(encode_request("CreateAcls", 3, {"Creations": [{**ENTRY, field: 0}]}))
    assert kind(theirs) == kind(ours) == "close"
