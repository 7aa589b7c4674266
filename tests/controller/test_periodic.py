"""What the controller does by itself: preferred and unclean elections, and the observers of its log."""

from __future__ import annotations

from uuid import UUID

from kbroker.controller import periodic
from kbroker.controller.observers import MAX_OBSERVERS, SESSION_MS, ObserverKey, QuorumObservers
from kbroker.controller.periodic import ElectPreferredLeaders, ElectUncleanLeaders, WriteNoOp
from kbroker.runtime.outcome import Outcome
from tests.controller.cluster import Cluster, topic
from tests.controller.test_isr import alter
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.stored.metadata import NoOpRecord, PartitionChangeRecord


def leaders(cluster: Cluster, name: str = "a") -> list[int]:
    return [partition.leader for partition in cluster.image.topics_by_name[name].partitions.values()]


def test_leaders_move_back_to_preferred_replicas_in_the_isr() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [2, 3], 1: [3, 2], 2: [2, 1]}))
    cluster.heartbeat(2, fence=True)
    cluster.heartbeat(2)
    assert leaders(cluster) == [3, 3, 1]
    assert cluster.ask(ElectPreferredLeaders()) == 0, "broker 2 is in no ISR"
    assert alter(cluster, [3, 2], sender=3).error_code == 0
    assert cluster.ask(ElectPreferredLeaders()) == 1
    assert leaders(cluster) == [2, 3, 1]
    assert cluster.ask(ElectPreferredLeaders()) == 0


def test_one_decision_makes_a_bounded_number_of_elections() -> None:
    cluster = Cluster(brokers=3)
    count = periodic.MAX_ELECTIONS + 1
    cluster.create(topic("a", assignments={index: [2, 3] for index in range(count)}))
    cluster.heartbeat(2, fence=True)
    cluster.heartbeat(2)
    for index in range(count):
        topic_id = cluster.image.topics_by_name["a"].id
        change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, isr=[3, 2])
        cluster.commit(Outcome([change], None))
    assert cluster.ask(ElectPreferredLeaders()) == periodic.MAX_ELECTIONS
    assert cluster.ask(ElectPreferredLeaders()) == 1


def test_r9_unclean_elections_happen_only_where_they_are_allowed() -> None:
    cluster = Cluster(brokers=3)
    for name in ("a", "b"):
        cluster.create(topic(name, assignments={0: [2, 3]}))
    for broker in (3, 2):
        cluster.heartbeat(broker, fence=True)
    cluster.heartbeat(3)
    assert leaders(cluster, "a") + leaders(cluster, "b") == [-1, -1]
    config = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=2, resource_name="a", configs=[config])
    cluster.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert cluster.ask(ElectUncleanLeaders()) == 1
    assert leaders(cluster, "a") + leaders(cluster, "b") == [3, -1]
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    assert (partition.isr, partition.leader_recovery_state) == ((3,), 1)


def test_a_no_op_advances_only_the_offset() -> None:
    cluster = Cluster()
    before = cluster.image
    cluster.ask(WriteNoOp())
    assert cluster.decided[-1] == NoOpRecord()
    assert cluster.image.offset == before.offset + 1
    assert cluster.image.brokers is before.brokers


KEY = ObserverKey(7, UUID(int=77))


def test_an_observer_has_caught_up_when_it_has_all_of_the_log() -> None:
    observers = QuorumObservers()
    for offset, end_offset, at_ms, caught_up_ms in (
        (5, 10, 100, -1),  # behind
        (9, 12, 200, -1),  # behind the end at the last fetch
        (12, 15, 300, 200),  # it has what was there at the last fetch
        (15, 15, 400, 400),
    ):
        observers.on_fetch(KEY, offset, log_end_offset=end_offset, timestamp_ms=at_ms)
        observer = observers.active(at_ms)[KEY]
        assert (observer.end_offset, observer.fetched_ms, observer.caught_up_ms) == (offset, at_ms, caught_up_ms)


def test_silent_and_surplus_observers_are_forgotten() -> None:
    observers = QuorumObservers()
    observers.on_fetch(KEY, 1, log_end_offset=1, timestamp_ms=0)
    assert KEY in observers.active(SESSION_MS - 1)
    assert not observers.active(SESSION_MS)
    for number in range(MAX_OBSERVERS):
        observers.on_fetch(ObserverKey(number, UUID(int=1)), 1, log_end_offset=1, timestamp_ms=1)
    assert KEY not in observers.active(1)
    assert len(observers.active(1)) == MAX_OBSERVERS


def test_observers_are_listed_with_their_progress() -> None:
    cluster = Cluster()
    cluster.controller.observers.on_fetch(KEY, 3, log_end_offset=4, timestamp_ms=1_000)
    topics = [
        DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
        )
    ]
    answer = cluster.ask(DescribeQuorumRequest(topics=topics), version=2, timestamp_ms=2_000)
    (partition,) = answer.topics[0].partitions
    (observer,) = partition.observers
    assert (observer.replica_id, observer.replica_directory_id) == KEY
    assert (observer.log_end_offset, observer.last_fetch_timestamp, observer.last_caught_up_timestamp) == (3, 1_000, -1)
    assert partition.current_voters[0].last_fetch_timestamp == 2_000
