"""CreatePartitions: valid and invalid growth of topics."""

from __future__ import annotations

import pytest

from tests.controller.cluster import Cluster, topic
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)


def grow(name: str, count: int, assignments: list[list[int]] | None = None) -> CreatePartitionsTopic:
    given = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    return CreatePartitionsTopic(name=name, count=count, assignments=given)


def ask(
    cluster: Cluster, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=1, validate_only=validate_only)
    response = cluster.ask(request)
    return [(one.name, one.error_code, one.error_message) for one in response.results]


def cluster_with_topic(brokers: int = 3) -> Cluster:
    cluster = Cluster(brokers=brokers)
    cluster.create(topic("a", 2, 2 if brokers > 1 else 1))
    return cluster


def test_the_placement_of_new_partitions_continues_the_old_one() -> None:
    cluster = cluster_with_topic()
    before = cluster.image.topics_by_name["a"].partitions
    assert ask(cluster, grow("a", 5)) == [("a", 0, None)]
    after = cluster.image.topics_by_name["a"].partitions
    assert [one.replicas for one in after.values()] == [(1, 2), (2, 3), (3, 1), (1, 2), (2, 3)]
    assert {index: after[index] for index in before} == before


def test_manual_assignments_are_used() -> None:
    cluster = cluster_with_topic()
    assert ask(cluster, grow("a", 3, [[3, 2]])) == [("a", 0, None)]
    assert cluster.image.topics_by_name["a"].partitions[2].replicas == (3, 2)


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (grow("a", 1), 37, "The topic a currently has 2 partition(s); 1 would not be an increase."),
        (grow("a", -1), 37, "The topic a currently has 2 partition(s); -1 would not be an increase."),
        (grow("a", 2), 37, "Topic already has 2 partition(s)."),
        (grow("nope", 2), 3, None),
        (
            grow("a", 4, [[1, 2]]),
            39,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            grow("a", 3, [[7, 1]]),
            39,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (grow("a", 3, [[]]), 39, "The manual partition assignment includes an empty replica list."),
        (
            grow("a", 3, [[1]]),
            39,
            (
                "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent "
                "with previous partitions, which have 2 replica(s)."
            ),
        ),
        (grow("a", 20_000), 44, "Unable to perform excessively large batch operation."),
        (grow("a", 2**31 - 1), 44, "Unable to perform excessively large batch operation."),
    ],
)
def test_w11_invalid_growth_is_refused_with_kafkas_messages(
    asked: CreatePartitionsTopic, code: int, text: str | None
) -> None:
    cluster = cluster_with_topic()
    before = cluster.image
    assert ask(cluster, asked) == [(asked.name, code, text)]
    assert cluster.image is before


def test_growth_needs_enough_brokers() -> None:
    cluster = cluster_with_topic(brokers=2)
    cluster.heartbeat(2, fence=True)
    assert ask(cluster, grow("a", 3, [[2, 1]]))[0][1] == 0
    cluster.heartbeat(1, fence=True)
    assert ask(cluster, grow("a", 4))[0][1] == 38
    assert ask(cluster, grow("a", 4, [[2, 1]]))[0][1] == 39


def test_topics_fail_independently_and_duplicates_fail() -> None:
    cluster = cluster_with_topic()
    cluster.create(topic("b", 1, 1))
    assert [(name, code) for name, code, _ in ask(cluster, grow("a", 3), grow("b", 1), grow("a", 4))] == [
        ("a", 42),
        ("b", 37),
    ]


def test_validate_only_changes_nothing() -> None:
    cluster = cluster_with_topic()
    before = cluster.image
    assert ask(cluster, grow("a", 5), validate_only=True) == [("a", 0, None)]
    assert cluster.image is before


def test_a_topic_that_grows_continues_where_it_ended() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("other", 1, 1))
    cluster.create(topic("a", 2, 2))
    ask(cluster, grow("a", 4))
    partitions = cluster.image.topics_by_name["a"].partitions.values()
    assert [partition.replicas for partition in partitions] == [(2, 3), (3, 1), (1, 2), (2, 3)]
