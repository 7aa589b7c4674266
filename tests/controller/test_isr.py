"""AlterPartition: the order of checks, and the effect of an ISR change on the epochs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.controller.cluster import Cluster, topic
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.stored.metadata import PartitionChangeRecord


def cluster_with_topic() -> Cluster:
    cluster = Cluster(brokers=4)
    cluster.create(topic("a", assignments={0: [1, 2, 3]}))
    return cluster


def alter(cluster: Cluster, isr: list[int], *, version: int = 3, sender: int = 1, **fields: Any) -> Any:
    """Propose an ISR as the leader with the current epochs, except for the given fields."""
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    epochs = fields.pop("epochs", {})
    asked = {
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "partition_index": 0,
        **{name: value for name, value in fields.items() if name not in {"topic_id", "broker_epoch"}},
    }
    members = [BrokerState(broker_id=member, broker_epoch=epochs.get(member, -1)) for member in isr]
    request = AlterPartitionRequest(
        broker_id=sender,
        broker_epoch=fields.get("broker_epoch", cluster.image.brokers[sender].epoch),
        topics=[
            AlterPartitionRequestTopic(
                topic_id=fields.get("topic_id", cluster.image.topics_by_name["a"].id),
                partitions=[
                    AlterPartitionRequestPartition(
                        new_isr=isr if version < 3 else [],
                        new_isr_with_epochs=members if version >= 3 else [],
                        **asked,
                    )
                ],
            )
        ],
    )
    (answered,) = cluster.ask(request, version=version).topics
    (one,) = answered.partitions
    return one


@pytest.mark.parametrize("version", [2, 3])
def test_an_isr_shrinks_and_grows_without_a_new_leader_epoch(version: int) -> None:
    cluster = cluster_with_topic()
    shrunk = alter(cluster, [1, 3], version=version)
    assert (shrunk.error_code, shrunk.isr, shrunk.leader_id) == (0, [1, 3], 1)
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (0, 1)
    grown = alter(cluster, [1, 3, 2], version=version)
    assert (grown.error_code, grown.isr, grown.leader_epoch, grown.partition_epoch) == (0, [1, 3, 2], 0, 2)


def test_an_unchanged_isr_succeeds_without_a_record() -> None:
    cluster = cluster_with_topic()
    before = cluster.image
    answer = alter(cluster, [1, 2, 3])
    assert (answer.error_code, answer.partition_epoch) == (0, 0)
    assert cluster.image is before


@pytest.mark.parametrize(
    ("isr", "fields", "code"),
    [
        ([1], {"topic_id": UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ([1], {"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1], {"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
        ([1], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1], {"leader_epoch": -1, "partition_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ([2], {"sender": 2}, ErrorCode.INVALID_REQUEST),
        ([1], {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 4], {}, ErrorCode.INVALID_REQUEST),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_c7_each_failed_check_has_its_error_code(isr: list[int], fields: dict[str, Any], code: ErrorCode) -> None:
    cluster = cluster_with_topic()
    alter(cluster, [1, 2])  # creates an older partition epoch
    before = cluster.image
    assert alter(cluster, isr, **fields).error_code == code
    assert cluster.image is before


@pytest.mark.parametrize("state", ["fenced", "shutting down", "gone"])
def test_a_member_must_be_active(state: str) -> None:
    cluster = cluster_with_topic()
    if state == "gone":
        cluster.ask(UnregisterBrokerRequest(broker_id=2))
    elif state == "fenced":
        cluster.heartbeat(2, fence=True)
    else:
        cluster.create(topic("b", assignments={0: [2]}))
        cluster.heartbeat(2, shut_down=True)
    assert alter(cluster, [1, 3, 2]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_c7_a_stale_broker_epoch_refuses_the_whole_request() -> None:
    with pytest.raises(KafkaError) as caught:
        alter(cluster_with_topic(), [1], broker_epoch=0)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def reassign(cluster: Cluster, **fields: Any) -> None:
    """Replay a reassignment, as another controller would have written it."""
    topic_id = cluster.image.topics_by_name["a"].id
    record = PartitionChangeRecord(partition_id=0, topic_id=topic_id, **fields)
    cluster.controller.replay([record], offset=cluster.image.offset + 1, epoch=1)


def test_a_complete_isr_finishes_a_reassignment() -> None:
    cluster = cluster_with_topic()
    reassign(cluster, replicas=[1, 2, 3, 4], adding_replicas=[4], removing_replicas=[3], directories=[UUID(int=1)] * 4)
    answer = alter(cluster, [1, 2, 3, 4])
    assert (answer.error_code, answer.isr) == (0, [1, 2, 4])
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ((1, 2, 4), (), ())
    assert len(partition.directories) == 3
    assert partition.leader_epoch == 1, "a replica was removed, so the leader epoch rises"


def test_finishing_a_reassignment_may_answer_new_leader_elected() -> None:
    cluster = cluster_with_topic()
    reassign(cluster, removing_replicas=[1])
    assert alter(cluster, [1, 2, 3]).error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    assert (partition.leader, partition.replicas, partition.isr) == (2, (2, 3), (2, 3))
