"""AlterPartitionReassignments: checks, the record that begins a move, the one that completes it, cancelling."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.metadata.image import PartitionImage
from tests.controller.cluster import Cluster, topic
from tests.controller.test_isr import alter
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

REFUSED = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def reassign(cluster: Cluster, replicas: list[int] | None, *, index: int = 0, name: str = "a", may: bool = True) -> int:
    """The error code of assigning these replicas to one partition, or of cancelling a reassignment (None)."""
    (answer,) = ask(cluster, {index: replicas}, name=name, may=may).responses[0].partitions
    return int(answer.error_code)


def ask(cluster: Cluster, wanted: dict[int, list[int] | None], *, name: str = "a", may: bool = True) -> Any:
    partitions = [ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in wanted.items()]
    return cluster.ask(
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name, partitions=partitions)], allow_replication_factor_change=may
        )
    )


def partition(cluster: Cluster) -> PartitionImage:
    found = cluster.image.partition("a", 0)
    assert found is not None
    return found


def moving(cluster: Cluster) -> tuple[Any, ...]:
    found = partition(cluster)
    return found.replicas, found.isr, found.adding_replicas, found.removing_replicas


def cluster_of_four(**settings: Any) -> Cluster:
    cluster = Cluster(brokers=4, **settings)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    return cluster


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1, 2], 0),
        ([1, 9], REFUSED),
        ([], REFUSED),
        ([1, 1], REFUSED),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_invalid_targets_are_refused(replicas: list[int] | None, code: int) -> None:
    cluster = cluster_of_four()
    before = cluster.image
    assert reassign(cluster, replicas) == code
    assert cluster.image is before


def test_a_changed_replica_count_is_refused_first() -> None:
    cluster = cluster_of_four()
    assert reassign(cluster, [1], may=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, [3, 4], may=False) == 0
    assert reassign(cluster, [3, 1], may=False) == 0, "replicas that go away do not count"


def test_reassigning_an_unknown_partition_fails() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 1, 1))
    assert reassign(cluster, [1], index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(cluster, None, name="b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reassignment_ends_when_the_new_replicas_are_in_sync() -> None:
    cluster = cluster_of_four()
    assert reassign(cluster, [3, 4]) == 0
    assert moving(cluster) == ((3, 4, 1, 2), (1, 2), (3, 4), (1, 2))
    assert partition(cluster).directories == tuple(UUID(int=5000 + broker) for broker in (3, 4, 1, 2))
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 0)
    assert alter(cluster, [1, 2, 3]).error_code == 0
    assert moving(cluster) == ((3, 4, 1, 2), (1, 2, 3), (3, 4), (1, 2))
    assert alter(cluster, [1, 2, 3, 4]).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert moving(cluster) == ((3, 4), (3, 4), (), ())
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (3, 1)
    assert partition(cluster).directories == (UUID(int=5003), UUID(int=5004))


def test_fewer_or_reordered_replicas_need_one_record() -> None:
    cluster = cluster_of_four()
    before = partition(cluster)
    assert reassign(cluster, [2, 1]) == 0
    assert moving(cluster) == ((2, 1), (1, 2), (), ())
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, before.leader_epoch)
    assert reassign(cluster, [2]) == 0
    assert moving(cluster) == ((2,), (2,), (), ())
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (2, before.leader_epoch + 1)


def test_more_replicas_are_added_first() -> None:
    cluster = cluster_of_four()
    reassign(cluster, [1, 2, 3])
    assert moving(cluster) == ((1, 2, 3), (1, 2), (3,), ())
    reassign(cluster, [1, 2, 3])
    assert moving(cluster) == ((1, 2, 3), (1, 2), (3,), ()), "a repeated request changes nothing"
    assert alter(cluster, [1, 2, 3]).error_code == 0
    assert moving(cluster) == ((1, 2, 3), (1, 2, 3), (), ())


def test_a_new_target_replaces_the_one_in_progress() -> None:
    cluster = cluster_of_four()
    reassign(cluster, [3])
    assert moving(cluster) == ((3, 1, 2), (1, 2), (3,), (1, 2))
    reassign(cluster, [4, 1])
    assert moving(cluster) == ((4, 1, 2, 3), (1, 2), (4,), (2, 3))
    reassign(cluster, [1, 2])
    assert moving(cluster) == ((1, 2), (1, 2), (), ())


def test_a_cancelled_reassignment_restores_the_replicas() -> None:
    cluster = cluster_of_four()
    reassign(cluster, [3, 4])
    alter(cluster, [1, 2, 3])
    assert reassign(cluster, None) == 0
    assert moving(cluster) == ((1, 2), (1, 2), (), ())
    assert partition(cluster).leader_epoch == 1, "a replica was removed"


@pytest.mark.parametrize("unclean", [False, True])
def test_r9_cancelling_loses_records_only_where_it_is_allowed(unclean: bool) -> None:
    cluster = cluster_of_four(unclean_leader_election_enable=unclean)
    reassign(cluster, [3, 4])
    alter(cluster, [1, 2, 3])
    cluster.heartbeat(1, fence=True)
    cluster.heartbeat(2, fence=True)
    assert moving(cluster)[1] == (3,)
    assert reassign(cluster, None) == (0 if unclean else REFUSED)
    assert moving(cluster)[0] == ((1, 2) if unclean else (3, 4, 1, 2))


def test_w11_a_request_with_too_many_records_is_refused_as_a_whole() -> None:
    cluster = Cluster(brokers=2, max_records_per_decision=10)
    cluster.create(topic("a", 6, 1))
    cluster.controller.settings = Cluster(max_records_per_decision=5).controller.settings
    with pytest.raises(KafkaError) as caught:
        ask(cluster, {index: [1, 2] for index in range(6)})
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert ask(cluster, {index: [1, 2] for index in range(5)}).responses[0].partitions[4].error_code == 0
