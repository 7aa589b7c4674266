"""AssignReplicasToDirs, and directories that a heartbeat reports as offline."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.metadata.image import PartitionImage
from tests.controller.cluster import Cluster, topic
from wire.errors import ErrorCode, KafkaError
from wire.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest

FIRST, SECOND, OTHER = UUID(int=6001), UUID(int=6002), UUID(int=6003)


def cluster_with_two_directories() -> Cluster:
    """Broker 1 has two directories and leads a-0, which has a replica on broker 2."""
    cluster = Cluster(brokers=2)
    request = cluster.registration(1, 2)
    request.log_dirs = [FIRST, SECOND]
    cluster.register_own(request)
    cluster.heartbeat(1)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    return cluster


def assign(cluster: Cluster, directory: UUID, *, index: int = 0, topic_id: UUID | None = None, broker: int = 1) -> int:
    topic_id = cluster.image.topics_by_name["a"].id if topic_id is None else topic_id
    asked = AssignedTopic(topic_id=topic_id, partitions=[AssignedPartition(partition_index=index)])
    request = AssignReplicasToDirsRequest(
        broker_id=broker,
        broker_epoch=cluster.image.brokers[broker].epoch,
        directories=[AssignedDirectory(id=directory, topics=[asked])],
    )
    answer = cluster.ask(request)
    return int(answer.directories[0].topics[0].partitions[0].error_code)


def partition(cluster: Cluster) -> PartitionImage:
    found = cluster.image.partition("a", 0)
    assert found is not None
    return found


def test_a_replica_is_assigned_to_its_directory() -> None:
    cluster = cluster_with_two_directories()
    assert partition(cluster).directory(1) == UUID(int=1), "unassigned"
    assert assign(cluster, SECOND) == 0
    assert partition(cluster).directories == (SECOND, UUID(int=5002))
    assert (partition(cluster).leader, partition(cluster).leader_epoch, partition(cluster).partition_epoch) == (1, 0, 1)
    before = cluster.image
    assert assign(cluster, SECOND) == 0
    assert cluster.image is before


def test_unknown_partitions_cannot_be_assigned() -> None:
    cluster = cluster_with_two_directories()
    cluster.create(topic("b", assignments={0: [2]}))
    other = cluster.image.topics_by_name["b"].id
    assert assign(cluster, FIRST, topic_id=UUID(int=9)) == ErrorCode.UNKNOWN_TOPIC_ID
    assert assign(cluster, FIRST, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(cluster, FIRST, topic_id=other) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_c7_a_stale_broker_assigns_nothing() -> None:
    request = AssignReplicasToDirsRequest(broker_id=1, broker_epoch=0, directories=[])
    with pytest.raises(KafkaError) as caught:
        cluster_with_two_directories().decide(request)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_replica_in_an_unknown_directory_leaves_the_isr() -> None:
    cluster = cluster_with_two_directories()
    assert assign(cluster, OTHER) == 0
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))


def test_replicas_in_a_directory_that_goes_offline_leave_the_isr() -> None:
    cluster = cluster_with_two_directories()
    assign(cluster, FIRST)
    cluster.create(topic("b", assignments={0: [1, 2]}))
    broker = cluster.image.brokers[1]
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=broker.epoch,
        current_metadata_offset=cluster.image.offset,
        want_fence=False,
        want_shut_down=False,
        offline_log_dirs=[FIRST, OTHER],
    )
    cluster.ask(request)
    assert cluster.image.brokers[1].log_dirs == (SECOND,)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    elsewhere = cluster.image.partition("b", 0)
    assert elsewhere is not None
    assert elsewhere.isr == (1, 2)
    before = cluster.image
    cluster.ask(request)
    assert cluster.image is before, "it is known to be offline"
