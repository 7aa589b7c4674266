"""CreateTopics and DeleteTopics: every refusal has Kafka's code and message, every success its records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.placement import place_replicas
from kbroker.controller.topics import create_topics, delete_topics
from kbroker.metadata.image import BrokerImage
from tests.controller.cluster import Cluster, topic
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from wire.stored.metadata import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from wire.types import ZERO_UUID

EXISTS, INVALID_NAME, PARTITIONS, FACTOR, ASSIGNMENT, CONFIG, REQUEST, POLICY = 36, 17, 37, 38, 39, 40, 42, 44


@pytest.mark.parametrize(
    ("asked", "is_long"),
    [
        ([topic("a")], True),  # num.partitions, which may be large
        ([topic("a", 20)], False),
        ([topic("a", 21)], True),
        ([topic("a", 10_000)], True),
        ([topic(str(number), 1) for number in range(21)], True),
        ([topic("a", 1, configs={str(number): "" for number in range(20)})], True),
        ([topic("a", assignments={0: [1, 2, 3], 1: [2, 3, 1]})], False),
        ([topic("a", assignments={0: [1] * 1_000})], True),
        ([topic("a", assignments={number: [] for number in range(1_000)})], True),
    ],
)
def test_a_small_creation_needs_no_thread(asked: list[CreatableTopic], is_long: bool) -> None:
    """The way to a thread and back takes longer than the decision; a long one would hold up all clients."""
    request = CreateTopicsRequest(topics=asked, timeout_ms=1, validate_only=False)
    assert create_topics.may_be_long(request) is is_long


@pytest.mark.parametrize(("count", "is_long"), [(20, False), (21, True)])
def test_a_small_deletion_needs_no_thread(count: int, is_long: bool) -> None:
    named = [DeleteTopicState(name=str(number), topic_id=ZERO_UUID) for number in range(count)]
    assert delete_topics.may_be_long(DeleteTopicsRequest(topics=named, timeout_ms=1)) is is_long
    request = DeleteTopicsRequest(topic_names=[str(number) for number in range(count)], timeout_ms=1)
    assert delete_topics.may_be_long(request) is is_long


def test_a_topic_is_created_with_its_configs_before_its_partitions() -> None:
    cluster = Cluster()
    (result,) = cluster.create(topic("a", 2, 1, configs={"retention.ms": "5"})).topics
    topic_record, config, *partitions = cluster.decided[-4:]
    assert topic_record == TopicRecord(name="a", topic_id=result.topic_id)
    assert config == ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5")
    assert partitions == [
        PartitionRecord(
            partition_id=index,
            topic_id=result.topic_id,
            replicas=[1],
            isr=[1],
            removing_replicas=[],
            adding_replicas=[],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[UUID(int=5001)],
        )
        for index in (0, 1)
    ]


def test_trap_18_the_response_has_id_counts_and_effective_configs() -> None:
    (result,) = Cluster().create(topic("a", configs={"retention.ms": "5"})).topics
    assert (result.error_code, result.error_message) == (0, None)
    assert result.topic_id != ZERO_UUID
    assert (result.num_partitions, result.replication_factor) == (3, 1)  # the broker's defaults
    assert result.configs is not None
    values = {one.name: one.value for one in result.configs}
    assert (values["retention.ms"], values["cleanup.policy"]) == ("5", "delete")


def test_validate_only_gives_the_same_answer_and_creates_nothing() -> None:
    cluster = Cluster()
    before = cluster.image
    (result,) = cluster.create(topic("a", 2, 1), validate_only=True).topics
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert cluster.image is before


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (topic("there"), EXISTS, "Topic 'there' already exists."),
        (topic(""), INVALID_NAME, "Topic name is invalid: the empty string is not allowed"),
        (topic(".."), INVALID_NAME, "Topic name is invalid: '..' is not allowed"),
        (topic("x" * 250), INVALID_NAME, "longer than the max allowed length 249"),
        (topic("../x"), INVALID_NAME, "contains one or more characters other than ASCII alphanumerics"),
        (topic("is_there"), INVALID_NAME, "Topic 'is_there' collides with existing topic: is.there"),
        (topic("n", 0, 1), PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        (topic("n", -2, 1), PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
        (topic("n", 1, 0), FACTOR, "Replication factor must be larger than 0, or -1 to use the default value."),
        (topic("n", 1, -5), FACTOR, "Replication factor must be larger than 0, or -1 to use the default value."),
        (
            topic("n", 1, 2),
            FACTOR,
            (
                "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
                "because only 1 broker(s) are registered or some brokers have all their log directories cordoned."
            ),
        ),
        (topic("n", 1, -1, assignments={0: [1]}), REQUEST, "but numPartitions was not set to -1."),
        (topic("n", -1, 1, assignments={0: [1]}), REQUEST, "but replication factor was not set to -1."),
        (topic("n", assignments={0: [9]}), ASSIGNMENT, "includes broker 9, but no such broker is registered."),
        (topic("n", assignments={0: [1, 1]}), ASSIGNMENT, "includes the broker 1 more than once."),
        (topic("n", assignments={0: []}), ASSIGNMENT, "includes an empty replica list."),
        (topic("n", assignments={0: [1], 2: [1]}), ASSIGNMENT, "should be a consecutive 0-based integer sequence"),
        (
            topic("n", assignments=[(0, [1]), (0, [1])]),
            ASSIGNMENT,
            "multiple manual partition assignments for partition 0",
        ),
        (topic("n", configs={"nonsense": "1"}), CONFIG, "Unknown topic config name: nonsense"),
        (  # after one election it would be more than an int32
            topic("n", configs={"kbroker.attached.leader.epoch": "2147483646"}),
            CONFIG,
            "Invalid value 2147483646 for configuration kbroker.attached.leader.epoch",
        ),
        (topic("n", configs={"retention.ms": "abc"}), CONFIG, "Invalid value abc for configuration retention.ms"),
        (
            topic("n", configs={"retention.ms": None}),
            CONFIG,
            "Null value not supported for topic configs: retention.ms",
        ),
        (topic("__cluster_metadata"), REQUEST, "Creation of internal topic __cluster_metadata is prohibited."),
        (topic("n", 10_001, 1), POLICY, "Excessively large number of partitions per request."),
        (topic("n", 2**31 - 1, 1), POLICY, "Excessively large number of partitions per request."),
        (topic("n", 10_000, 1), POLICY, "Unable to perform excessively large batch operation."),
    ],
)
def test_w11_x5_invalid_topics_are_refused_with_kafkas_messages(asked: CreatableTopic, code: int, text: str) -> None:
    cluster = Cluster()
    cluster.create(topic("there"), topic("is.there"))
    refused, message = cluster.fails(asked)
    assert refused == code
    assert message is not None
    assert text in message


def test_topics_of_one_request_fail_independently() -> None:
    cluster = Cluster()
    results = cluster.create(topic("good"), topic("bad name"), topic("twice"), topic("twice"), topic("other")).topics
    assert [(one.name, one.error_code) for one in results] == [
        ("good", 0),
        ("bad name", 17),
        ("other", 0),
        ("twice", 42),
    ]
    assert sorted(cluster.image.topics_by_name) == ["good", "other"]


def test_x5_colliding_names_in_one_request_are_not_both_created() -> None:
    cluster = Cluster()
    results = cluster.create(topic("c.d"), topic("c_d")).topics
    assert [one.error_code for one in results] == [0, 17]


def test_w11_a_request_with_too_many_records_fails_as_a_whole() -> None:
    cluster = Cluster(max_records_per_decision=10)
    before = cluster.image
    results = cluster.create(topic("a", 4, 1), topic("b", 5, 1)).topics
    assert [one.error_code for one in results] == [POLICY, POLICY]
    assert cluster.image is before
    assert [one.error_code for one in cluster.create(topic("a", 4, 1), topic("b", 4, 1)).topics] == [0, 0]


def test_fenced_brokers_of_manual_assignments_stay_out_of_the_isr() -> None:
    cluster = Cluster(brokers=3)
    cluster.heartbeat(2, fence=True)
    (result,) = cluster.create(topic("a", assignments={1: [3, 1], 0: [2, 1]})).topics
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    partitions = cluster.image.topics_by_name["a"].partitions
    assert [(one.replicas, one.isr, one.leader) for one in partitions.values()] == [
        ((2, 1), (1,), 1),
        ((3, 1), (3, 1), 3),
    ]
    code, text = cluster.fails(topic("b", assignments={0: [2]}))
    assert (code, text) == (
        ASSIGNMENT,
        (
            "All brokers specified in the manual partition assignment for partition 0 are fenced or in controlled "
            "shutdown."
        ),
    )
    assert cluster.fails(topic("b", assignments={0: [1, 3], 1: [1]}))[0] == ASSIGNMENT


def test_creation_fails_while_all_brokers_are_fenced() -> None:
    cluster = Cluster()
    cluster.heartbeat(1, fence=True)
    assert cluster.fails(topic("a")) == (
        FACTOR,
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced.",
    )


def test_topic_ids_are_unreserved_and_never_start_with_minus() -> None:
    cluster = Cluster()
    candidates = [UUID(int=1), UUID(int=62 << 122), UUID(int=1 << 100)]
    cluster.controller._new_uuid = lambda: candidates.pop(0)
    (result,) = cluster.create(topic("a")).topics
    assert result.topic_id == UUID(int=1 << 100)


def brokers_in_racks(racks: Mapping[int, str | None], fenced: Collection[int] = ()) -> list[BrokerImage]:
    return [
        BrokerImage(broker, 0, UUID(int=broker), {}, {}, rack=rack, fenced=broker in fenced)
        for broker, rack in racks.items()
    ]


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 30), st.data())
def test_replicas_are_placed_round_robin_over_sorted_brokers(
    brokers: int, partitions: int, start: int, data: Any
) -> None:
    ids = sorted(data.draw(st.sets(st.integers(0, 1000), min_size=brokers, max_size=brokers)))
    factor = data.draw(st.integers(1, brokers))
    placed = place_replicas(
        brokers_in_racks(dict.fromkeys(ids)), start=start, partitions=partitions, replication_factor=factor
    )
    assert placed == [
        tuple(ids[(index + replica) % brokers] for replica in range(factor))
        for index in range(start, start + partitions)
    ]


@given(st.dictionaries(st.integers(0, 99), st.sampled_from("abcd"), min_size=1, max_size=12), st.data())
def test_no_rack_has_two_replicas_while_another_has_none(racks: dict[int, str], data: Any) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(brokers_in_racks(racks), start=0, partitions=len(racks), replication_factor=factor)
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))
    assert sorted(replicas[0] for replicas in placed) == sorted(racks), "every broker leads one partition"


def test_fenced_brokers_come_last_and_lead_nothing() -> None:
    brokers = brokers_in_racks(dict.fromkeys((1, 2, 3)), fenced=[1])
    assert place_replicas(brokers, start=0, partitions=2, replication_factor=2) == [(2, 3), (3, 2)]
    assert place_replicas(brokers, start=0, partitions=2, replication_factor=3) == [(2, 3, 1), (3, 2, 1)]
    racks = brokers_in_racks({1: "a", 2: "b", 3: "b"}, fenced=[1])
    assert place_replicas(racks, start=0, partitions=1, replication_factor=2) == [(2, 1)]


def test_topics_with_one_partition_have_different_leaders() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", 1, 2), topic("b", 1, 2))
    cluster.create(topic("c", 1, 2))
    assert [one.partitions[0].replicas for one in cluster.image.topics_by_name.values()] == [(1, 2), (2, 3), (3, 1)]


def delete(cluster: Cluster, version: int, *names: str, states: list[tuple[str | None, UUID]] | None = None) -> Any:
    request = DeleteTopicsRequest(
        topic_names=list(names),
        topics=[DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in states or []],
        timeout_ms=1,
    )
    response = cluster.ask(request, version=version)
    return [(one.name, one.topic_id, one.error_code) for one in response.responses]


def test_topics_are_deleted_by_name_and_by_id() -> None:
    cluster = Cluster()
    first, second = [one.topic_id for one in cluster.create(topic("a"), topic("b"), topic("c")).topics][:2]
    assert delete(cluster, 5, "a") == [("a", first, 0)]
    assert delete(cluster, 6, states=[(None, second), ("c", ZERO_UUID)])[0] == ("b", second, 0)
    assert cluster.decided[-2] == RemoveTopicRecord(topic_id=second)
    assert cluster.image.topics_by_name == {}


def test_a_recreated_topic_has_another_id() -> None:
    cluster = Cluster()
    (first,) = cluster.create(topic("a", configs={"retention.ms": "5"})).topics
    delete(cluster, 5, "a")
    (second,) = cluster.create(topic("a")).topics
    assert first.topic_id != second.topic_id
    assert cluster.image.topic_configs("a") == {}


def test_failed_deletions_have_an_error_for_each_topic() -> None:
    cluster = Cluster()
    (known,) = [one.topic_id for one in cluster.create(topic("a")).topics]
    unknown = UUID(int=99)
    assert delete(cluster, 5, "nope") == [("nope", ZERO_UUID, 3)]
    assert delete(cluster, 5, "a", "a") == [("a", ZERO_UUID, 42)]
    assert delete(cluster, 6, states=[(None, unknown)]) == [(None, unknown, 100)]
    assert delete(cluster, 6, states=[(None, known), (None, known)]) == [(None, known, 42)]
    assert delete(cluster, 6, states=[(None, ZERO_UUID)]) == [(None, ZERO_UUID, 42)]
    assert delete(cluster, 6, states=[("a", known)]) == [("a", known, 42)]
    assert delete(cluster, 6, states=[("a", ZERO_UUID), (None, known)]) == [("a", known, 42)]
    assert "a" in cluster.image.topics_by_name


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_disabled(version: int, code: int) -> None:
    cluster = Cluster(delete_topic_enable=False)
    cluster.create(topic("a"))
    assert delete(cluster, version, "a") == [("a", ZERO_UUID, code)]


def test_w11_deleting_too_many_topics_at_once_is_refused() -> None:
    cluster = Cluster(max_records_per_decision=4)
    for name in "abcde":
        cluster.create(topic(name))
    assert {code for _, _, code in delete(cluster, 5, *"abcde")} == {POLICY}
    assert len(cluster.image.topics_by_name) == 5


def test_deletion_error_messages_are_those_of_kafka() -> None:
    request = DeleteTopicsRequest(topic_names=["nope"], timeout_ms=1)
    (result,) = Cluster().decide(request, version=5).response.responses
    assert result == DeletableTopicResult(
        name="nope", error_code=3, error_message="This server does not host this topic-partition."
    )
