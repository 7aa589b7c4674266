"""ElectLeaders: the new leaders, and the errors where nothing changes."""

from __future__ import annotations

import pytest

from tests.controller.cluster import Cluster, topic
from tests.controller.test_isr import alter
from wire.errors import ErrorCode, KafkaError
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


def elect(
    cluster: Cluster, *partitions: tuple[str, list[int]], election: int = PREFERRED, everything: bool = False
) -> dict[tuple[str, int], int]:
    """The error code of each topic and partition."""
    asked = [TopicPartitions(topic=name, partitions=indexes) for name, indexes in partitions]
    request = ElectLeadersRequest(election_type=election, topic_partitions=None if everything else asked)
    answer = cluster.ask(request)
    return {
        (topic.topic, one.partition_id): one.error_code
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }


def leader(cluster: Cluster, index: int = 0) -> int:
    partition = cluster.image.partition("a", index)
    assert partition is not None
    return partition.leader


def not_preferred_leader() -> Cluster:
    """A cluster of three brokers. Broker 2 leads partition 0; its preferred leader, broker 1, is back but not in the
    ISR.
    """
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", assignments={0: [1, 2], 1: [3, 2]}))
    cluster.heartbeat(1, fence=True)
    cluster.heartbeat(1)
    assert leader(cluster) == 2
    return cluster


def set_isr(cluster: Cluster, members: list[int]) -> None:
    """Let the leader of partition 0 propose this ISR."""
    assert alter(cluster, members, sender=2).error_code == 0


def test_the_preferred_leader_leads_again() -> None:
    cluster = not_preferred_leader()
    set_isr(cluster, [1, 2])
    assert elect(cluster, ("a", [0, 1])) == {("a", 0): 0, ("a", 1): NOT_NEEDED}
    assert leader(cluster) == 1
    assert elect(cluster, ("a", [0])) == {("a", 0): NOT_NEEDED}


def test_an_election_for_all_partitions_returns_only_changed_ones() -> None:
    cluster = not_preferred_leader()
    set_isr(cluster, [1, 2])
    assert elect(cluster, everything=True) == {("a", 0): 0}
    assert elect(cluster, everything=True) == {}


def test_a_preferred_leader_outside_the_isr_is_not_elected() -> None:
    cluster = not_preferred_leader()
    before = cluster.image
    assert elect(cluster, ("a", [0])) == {("a", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.image is before


def test_an_unclean_election_is_for_partitions_without_a_leader() -> None:
    cluster = not_preferred_leader()
    assert elect(cluster, ("a", [0]), election=UNCLEAN) == {("a", 0): NOT_NEEDED}
    cluster.heartbeat(2, fence=True)
    assert leader(cluster) == -1
    assert elect(cluster, ("a", [0])) == {("a", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert elect(cluster, ("a", [0]), election=UNCLEAN) == {("a", 0): 0}
    assert leader(cluster) == 1
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    assert (partition.isr, partition.leader_recovery_state) == ((1,), 1)


def test_an_unclean_election_fails_without_live_replicas() -> None:
    cluster = not_preferred_leader()
    for broker in (1, 2):
        cluster.heartbeat(broker, fence=True)
    assert elect(cluster, ("a", [0]), election=UNCLEAN) == {("a", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_a_partition_named_twice_is_elected_once() -> None:
    cluster = not_preferred_leader()
    set_isr(cluster, [1, 2])
    epoch = cluster.image.partition("a", 0)
    assert epoch is not None
    asked = [TopicPartitions(topic="a", partitions=[0, 0])]
    answer = cluster.ask(ElectLeadersRequest(topic_partitions=asked))
    assert [one.error_code for one in answer.replica_election_results[0].partition_result] == [0, 0]
    after = cluster.image.partition("a", 0)
    assert after is not None
    assert after.leader_epoch == epoch.leader_epoch + 1


def test_elections_of_unknown_partitions_fail() -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert elect(not_preferred_leader(), ("a", [7]), ("b", [0])) == {("a", 7): unknown, ("b", 0): unknown}


def test_w11_a_request_with_too_many_elections_is_refused() -> None:
    cluster = Cluster(brokers=2, max_records_per_decision=3)
    for name in "abcd":
        cluster.create(topic(name, assignments={0: [1, 2]}))
    cluster.heartbeat(1, fence=True)
    cluster.heartbeat(1)
    cluster.heartbeat(2, fence=True)
    request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None)
    with pytest.raises(KafkaError) as caught:
        cluster.decide(request)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
