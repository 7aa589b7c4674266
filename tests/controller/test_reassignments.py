"""AlterPartitionReassignments where there is nobody to move replicas to."""

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
    """The error code of giving one partition these replicas, or of calling off what was begun."""
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[partition])], allow_replication_factor_change=may
    )
    outcome = cluster.controller.alter_partition_reassignments(request)
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
def test_only_what_is_so_already_is_accepted(replicas: list[int] | None, code: int) -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    assert reassign(cluster, replicas) == code


def test_another_number_of_replicas_is_refused_first_where_it_may_not_change() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    assert reassign(cluster, [1], may=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, [1, 2], may=False) == 0


def test_what_does_not_exist_cannot_be_moved() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 1, 1))
    assert reassign(cluster, [1], index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(cluster, None, name="b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
