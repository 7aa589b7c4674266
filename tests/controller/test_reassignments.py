"""AlterPartitionReassignments in a cluster with a single broker."""

from __future__ import annotations

import pytest

from tests.controller.cluster import Cluster, topic
from wire.errors import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

REFUSED = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def reassign(cluster: Cluster, replicas: list[int] | None, *, index: int = 0, name: str = "a", may: bool = True) -> int:
    """The error code of assigning these replicas to one partition, or of cancelling a reassignment (None)."""
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[partition])], allow_replication_factor_change=may
    )
    outcome = cluster.decide(request)
    assert outcome.records == []
    (answer,) = outcome.response.responses[0].partitions
    return answer.error_code


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1, 2], 0),
        ([1, 9], REFUSED),
        ([], REFUSED),
        ([1, 1], REFUSED),
        ([1, 3], REFUSED),
        ([2, 1], REFUSED),
        ([1], REFUSED),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_only_the_current_replicas_are_accepted(replicas: list[int] | None, code: int) -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    assert reassign(cluster, replicas) == code


def test_a_changed_replica_count_is_refused_first() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    assert reassign(cluster, [1], may=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, [1, 2], may=False) == 0


def test_reassigning_an_unknown_partition_fails() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 1, 1))
    assert reassign(cluster, [1], index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(cluster, None, name="b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
