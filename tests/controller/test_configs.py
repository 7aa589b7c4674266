"""IncrementalAlterConfigs and AlterConfigs: each resource is changed completely or not at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.config import Settings
from kbroker.config.rules import ConfigRules
from kbroker.config.sasl import SCRAM_SECRET
from kbroker.controller.configs import Operation, wanted_values
from kbroker.metadata.image import Image
from kbroker.runtime.outcome import Outcome
from tests.controller.cluster import Cluster, topic
from wire.messages import alter_configs as legacy
from wire.messages.controller_registration import ControllerRegistrationRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.stored.metadata import ConfigRecord

TOPIC, BROKER = 2, 4
Change = tuple[str, int, str | None]


def resource(resource_type: int, name: str, *changes: Change) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes],
    )


def alter(
    cluster: Cluster, *resources: AlterConfigsResource, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    response = cluster.ask(request)
    assert [(one.resource_type, one.resource_name) for one in response.responses] == [
        (one.resource_type, one.resource_name) for one in resources
    ]
    return [(one.error_code, one.error_message) for one in response.responses]


def cluster_with_topic() -> Cluster:
    cluster = Cluster()
    cluster.create(topic("a", configs={"retention.ms": "5"}))
    return cluster


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([("retention.ms", Operation.SET, "7")], {"retention.ms": "7"}),
        ([("retention.ms", Operation.DELETE, None)], {}),
        ([("retention.ms", Operation.DELETE, "ignored")], {}),
        ([("cleanup.policy", Operation.APPEND, "compact")], {"retention.ms": "5", "cleanup.policy": "delete,compact"}),
        ([("cleanup.policy", Operation.APPEND, "delete")], {"retention.ms": "5", "cleanup.policy": "delete"}),
        ([("cleanup.policy", Operation.SUBTRACT, "delete")], {"retention.ms": "5", "cleanup.policy": ""}),
        ([("cleanup.policy", Operation.SUBTRACT, "other")], {"retention.ms": "5", "cleanup.policy": "delete"}),
        (
            [("retention.ms", Operation.SET, "7"), ("cleanup.policy", Operation.SET, "compact")],
            {"retention.ms": "7", "cleanup.policy": "compact"},
        ),
    ],
)
def test_each_operation_does_what_kafka_does(changes: list[Change], expected: dict[str, str]) -> None:
    cluster = cluster_with_topic()
    assert alter(cluster, resource(TOPIC, "a", *changes)) == [(0, None)]
    assert cluster.image.topic_configs("a") == expected


@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        (Operation.APPEND, "c,b,d,c", "a,b,a,c,d"),
        (Operation.SUBTRACT, "a,c", "b,a"),
        (Operation.SUBTRACT, "a,a,a", "b"),
    ],
)
def test_repeated_parts_of_a_list_are_edited_as_in_kafka(operation: Operation, value: str, expected: str) -> None:
    key = "sasl.enabled.mechanisms"
    image = Image(configs={(BROKER, "1"): {key: "a,b,a"}})
    asked = resource(BROKER, "1", (key, operation, value))
    assert wanted_values(image, ConfigRules(Settings.load()), asked) == {key: expected}


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (resource(TOPIC, "nope", ("retention.ms", 0, "1")), 3, "The topic 'nope' does not exist."),
        (resource(TOPIC, "", ("retention.ms", 0, "1")), 42, "Default topic resources are not allowed."),
        (resource(TOPIC, "a b", ("retention.ms", 0, "1")), 17, "Topic name is invalid"),
        (resource(TOPIC, "a", ("nonsense", 0, "1")), 40, "Unknown topic config name: nonsense"),
        (resource(TOPIC, "a", ("retention.ms", 0, "x")), 40, "Invalid value x"),
        (resource(TOPIC, "a", ("retention.ms", 0, None)), 42, "Null value not supported for : retention.ms"),
        (resource(TOPIC, "a", ("retention.ms", 2, "1")), 40, "Can't APPEND to key retention.ms"),
        (resource(TOPIC, "a", ("retention.ms", 9, "1")), 42, "Unknown operations type 9"),
        (
            resource(TOPIC, "a", ("retention.ms", 0, "1"), ("retention.ms", 0, "2")),
            42,
            "Error due to duplicate config keys",
        ),
        (resource(BROKER, "x", ("log.retention.ms", 0, "1")), 42, "Unable to parse broker name as a base 10 number."),
        (resource(BROKER, "9", ("log.retention.ms", 0, "1")), 102, "No node with id 9 found."),
        (resource(BROKER, "", ("nonsense", 0, "1")), 42, "Unknown broker config name nonsense"),
        (resource(8, "1", ("kafka", 0, "INFO")), 42, "Unknown resource type 8"),
        (resource(99, "1", ("kafka", 0, "INFO")), 35, "Unknown resource type 99."),
    ],
)
def test_invalid_config_changes_are_refused(asked: AlterConfigsResource, code: int, text: str) -> None:
    cluster = cluster_with_topic()
    before = cluster.image
    ((refused, message),) = alter(cluster, asked)
    assert refused == code
    assert message is not None
    assert text in message
    assert cluster.image is before


def test_one_bad_key_fails_only_its_resource() -> None:
    cluster = cluster_with_topic()
    codes = alter(
        cluster,
        resource(TOPIC, "a", ("retention.ms", 0, "7"), ("nonsense", 0, "1")),
        resource(BROKER, "1", ("log.retention.ms", 0, "8")),
        resource(BROKER, "", ("log.retention.ms", 0, "9")),
    )
    assert [code for code, _ in codes] == [40, 0, 0]
    assert cluster.image.topic_configs("a") == {"retention.ms": "5"}
    assert cluster.image.broker_configs(1) == {"log.retention.ms": "8"}
    assert cluster.image.broker_configs(None) == {"log.retention.ms": "9"}


def test_both_entries_of_a_duplicate_resource_fail() -> None:
    cluster = cluster_with_topic()
    same = resource(TOPIC, "a", ("retention.ms", 0, "7"))
    assert alter(cluster, same, same) == [(42, "Each resource must appear at most once.")] * 2


def test_unchanged_values_are_recorded_for_brokers_only() -> None:
    cluster = cluster_with_topic()
    alter(cluster, resource(BROKER, "1", ("log.retention.ms", 0, "8")))
    before = len(cluster.decided)
    alter(cluster, resource(TOPIC, "a", ("retention.ms", 0, "5")))
    assert len(cluster.decided) == before
    alter(cluster, resource(BROKER, "1", ("log.retention.ms", 0, "8")))
    assert cluster.decided[before:] == [
        ConfigRecord(resource_type=4, resource_name="1", name="log.retention.ms", value="8")
    ]


def test_validate_only_gives_the_same_answer_and_changes_nothing() -> None:
    cluster = cluster_with_topic()
    before = cluster.image
    assert alter(cluster, resource(TOPIC, "a", ("retention.ms", 0, "7")), validate_only=True) == [(0, None)]
    assert alter(cluster, resource(TOPIC, "a", ("retention.ms", 0, "x")), validate_only=True)[0][0] == 40
    assert cluster.image is before


def test_w11_a_request_with_too_many_changes_is_refused() -> None:
    cluster = Cluster(max_records_per_decision=5)
    cluster.create(topic("a"))
    cluster.create(topic("b"))
    before = cluster.image
    two: list[Change] = [("retention.ms", 0, "7"), ("cleanup.policy", 0, "compact")]
    resources = [resource(TOPIC, name, *two) for name in "ab"]
    broker = resource(BROKER, "1", ("log.retention.ms", 0, "8"))
    default = resource(BROKER, "", ("log.retention.ms", 0, "8"))
    assert [code for code, _ in alter(cluster, *resources, broker, default)] == [44] * 4
    assert cluster.image is before
    assert [code for code, _ in alter(cluster, *resources, broker)] == [0] * 3


def replace(cluster: Cluster, configs: dict[str, str | None]) -> int:
    """The older request for topic a."""
    values = [legacy.AlterableConfig(name=key, value=value) for key, value in configs.items()]
    changed = legacy.AlterConfigsResource(resource_type=TOPIC, resource_name="a", configs=values)
    (result,) = cluster.ask(legacy.AlterConfigsRequest(resources=[changed], validate_only=False)).responses
    return result.error_code


def test_alter_configs_replaces_all_overrides() -> None:
    cluster = Cluster()
    cluster.create(topic("a", configs={"retention.ms": "5", "cleanup.policy": "compact"}))
    assert replace(cluster, {"retention.ms": "9"}) == 0
    assert cluster.image.topic_configs("a") == {"retention.ms": "9"}
    assert replace(cluster, {"nonsense": "9"}) == 40
    assert replace(cluster, {"retention.ms": None}) == 42
    assert cluster.image.topic_configs("a") == {"retention.ms": "9"}
    assert replace(cluster, {}) == 0
    assert cluster.image.topic_configs("a") == {}


def test_alter_configs_keeps_the_secret_for_scram() -> None:
    """No client sees its value, so none could name it."""
    cluster = Cluster()
    secret = ConfigRecord(resource_type=BROKER, resource_name="", name=SCRAM_SECRET, value="5")
    cluster.commit(Outcome([secret], None))
    assert alter(cluster, resource(BROKER, "", ("log.retention.ms", 0, "8"))) == [(0, None)]
    changed = legacy.AlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[legacy.AlterableConfig(name="log.retention.bytes", value="9")]
    )
    (result,) = cluster.ask(legacy.AlterConfigsRequest(resources=[changed], validate_only=False)).responses
    assert result.error_code == 0
    assert cluster.image.broker_configs(None) == {"log.retention.bytes": "9", SCRAM_SECRET: "5"}


def test_alter_configs_keeps_settings_that_kafka_does_not_have() -> None:
    """Otherwise stock clients would drop leases, and could not change attached topics."""
    own = {
        "kbroker.attached.end.offsets": "0:5",
        "kbroker.attached.leader.epoch": "3",
        "kbroker.read.only": "true",
        "kbroker.retention.leases": "x;1;2;0:0",
    }
    cluster = Cluster()
    cluster.create(topic("a", configs={**own, "retention.ms": "5"}))
    assert replace(cluster, {"cleanup.policy": "compact"}) == 0
    assert cluster.image.topic_configs("a") == {**own, "cleanup.policy": "compact"}
    assert replace(cluster, {"kbroker.read.only": "false", "kbroker.attached.leader.epoch": "4"}) == 40
    assert replace(cluster, {"kbroker.read.only": "false", "kbroker.retention.leases": ""}) == 0
    assert cluster.image.topic_configs("a") == {
        **own, "kbroker.read.only": "false", "kbroker.retention.leases": ""
    }  # fmt: skip


@pytest.mark.parametrize(("name", "code"), [("1", 0), ("", 0), ("2", 0), ("3", 102), ("x", 42)])
def test_the_settings_of_a_node_need_its_registration(name: str, code: int) -> None:
    cluster = Cluster(brokers=1)
    cluster.ask(
        ControllerRegistrationRequest(
            controller_id=2, incarnation_id=UUID(int=1), zk_migration_ready=False, listeners=[], features=[]
        )
    )
    request = IncrementalAlterConfigsRequest(
        resources=[resource(BROKER, name, ("log.retention.ms", 0, "8"))], validate_only=False
    )
    (result,) = cluster.ask(request).responses
    assert result.error_code == code
