"""The states of a broker: registration, fencing, controlled shutdown, and the leaders of its partitions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.controller.brokers import FenceSilentBroker
from kbroker.controller.sessions import BrokerSessions
from tests.controller.cluster import Cluster, topic
from wire.errors import ErrorCode, KafkaError
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from wire.messages.broker_registration import FeatureRange
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.stored.metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)


def epochs(cluster: Cluster, name: str = "a", index: int = 0) -> tuple[int, int, int]:
    partition = cluster.image.partition(name, index)
    assert partition is not None
    return partition.leader, partition.leader_epoch, partition.partition_epoch


def kinds(records: list[Any]) -> list[tuple[str, Any]]:
    """Each record's class and the fields that these tests compare."""
    found: list[tuple[str, Any]] = []
    for record in records:
        if isinstance(record, PartitionChangeRecord):
            found.append(("leader", record.leader))
        elif isinstance(record, BrokerRegistrationChangeRecord):
            found.append(("change", (record.fenced, record.in_controlled_shutdown)))
        else:
            found.append((type(record).__name__, getattr(record, "fenced", None)))
    return found


def test_a_clean_restart_writes_the_same_records_as_kafka() -> None:
    """Records and epochs as in the metadata log of Apache Kafka 4.3.1 after SIGTERM and a start."""
    cluster = Cluster()
    cluster.create(topic("a", 2, 1))
    assert epochs(cluster) == (1, 0, 0)
    mark = len(cluster.decided)
    assert not cluster.heartbeat(1, shut_down=True).should_shut_down
    assert kinds(cluster.decided[mark:]) == [("change", (0, 1)), ("leader", -1), ("leader", -1)]
    assert epochs(cluster) == (-1, 1, 1)
    mark = len(cluster.decided)
    assert cluster.heartbeat(1, shut_down=True).should_shut_down
    assert kinds(cluster.decided[mark:]) == [("change", (1, 0))]
    mark = len(cluster.decided)
    cluster.start(1, incarnation=2)
    assert kinds(cluster.decided[mark:]) == [
        ("RegisterBrokerRecord", True),
        ("RegisterControllerRecord", None),
        ("change", (-1, 0)),
        ("leader", 1),
        ("leader", 1),
    ]
    assert epochs(cluster) == (1, 2, 2)


def test_a_restart_after_kill_raises_the_leader_epoch_by_two() -> None:
    """Kafka writes the same records nine seconds later, when the dead incarnation's session has expired."""
    cluster = Cluster()
    cluster.create(topic("a", 1, 1))
    mark = len(cluster.decided)
    cluster.start(1, incarnation=2)
    assert kinds(cluster.decided[mark:]) == [
        ("leader", -1),
        ("change", (1, 0)),
        ("RegisterBrokerRecord", True),
        ("RegisterControllerRecord", None),
        ("change", (-1, 0)),
        ("leader", 1),
    ]
    assert epochs(cluster) == (1, 2, 2)
    assert cluster.image.partition("a", 0).isr == (1,)  # type: ignore[union-attr]


def test_the_broker_epoch_is_the_offset_of_its_registration() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 3, 1))
    first = cluster.image.end_offset
    cluster.register_own(cluster.registration(1, 2))
    offset = cluster.image.brokers[1].epoch
    assert isinstance(cluster.decided[offset], RegisterBrokerRecord)
    assert offset == first + 4, "three leader changes and the fencing come before it"


def test_the_same_incarnation_registers_again_with_the_same_epoch() -> None:
    cluster = Cluster()
    before = cluster.image.brokers[1]
    response = cluster.ask(cluster.registration(1), now_ms=0)
    assert response.broker_epoch == before.epoch
    assert cluster.image.brokers[1] == before


def test_d12_a_second_incarnation_is_refused_while_the_first_lives() -> None:
    cluster = Cluster(brokers=2)
    with pytest.raises(KafkaError) as caught:
        cluster.decide(cluster.registration(2, 2), now_ms=8_999)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.ask(cluster.registration(2, 2), now_ms=9_000)
    assert cluster.image.brokers[2].incarnation_id == UUID(int=2_000_002)


def test_d12_no_other_process_takes_the_id_of_the_controllers_broker() -> None:
    cluster = Cluster()
    with pytest.raises(KafkaError) as caught:
        cluster.decide(cluster.registration(1, 2), now_ms=1_000_000)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.start(1, incarnation=2)
    assert cluster.image.brokers[1].incarnation_id == UUID(int=1_000_002)


def test_an_incarnation_without_a_heartbeat_can_be_replaced() -> None:
    cluster = Cluster()
    cluster.ask(cluster.registration(2, 1), now_ms=0)
    cluster.ask(cluster.registration(2, 2), now_ms=1)
    assert cluster.image.brokers[2].incarnation_id == UUID(int=2_000_002)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [UUID(int=99)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [UUID(int=6000), UUID(int=6000)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [UUID(int=5001)]}, ErrorCode.INVALID_REGISTRATION),  # broker 1 has it
        ({"features": []}, ErrorCode.INVALID_REGISTRATION),
        (
            {"features": [FeatureRange(name="metadata.version", min_supported_version=7, max_supported_version=20)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_d12_invalid_registrations_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    cluster = Cluster()
    request = cluster.registration(2)
    for name, value in fields.items():
        setattr(request, name, value)
    with pytest.raises(KafkaError) as caught:
        cluster.decide(request, now_ms=0)
    assert caught.value.code is code


def test_c7_a_heartbeat_with_a_wrong_epoch_or_id_is_refused() -> None:
    cluster = Cluster()
    cluster.start(1, incarnation=2)
    stale = cluster.image.brokers[1].epoch - 1
    for broker_id, epoch in ((1, stale), (7, 0)):
        with pytest.raises(KafkaError) as caught:
            cluster.decide(_heartbeat(broker_id, epoch))
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def _heartbeat(broker_id: int, epoch: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=0, want_fence=False, want_shut_down=False
    )


def test_a_broker_is_unfenced_once_it_has_replayed_its_registration() -> None:
    cluster = Cluster()
    cluster.ask(cluster.registration(2), now_ms=0)
    epoch = cluster.image.brokers[2].epoch
    behind = cluster.heartbeat(2, offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = cluster.heartbeat(2, offset=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)


def test_fencing_moves_leaders_and_shrinks_the_isr() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(topic("a", 3, 2))
    cluster.heartbeat(1, fence=True)
    partitions = cluster.image.topics_by_name["a"].partitions
    assert [(one.leader, one.isr, one.leader_epoch, one.partition_epoch) for one in partitions.values()] == [
        (2, (2,), 1, 1),  # was led by 1
        (2, (2, 3), 0, 0),  # is not on 1
        (3, (3,), 0, 1),  # only shrank
    ]
    cluster.heartbeat(1)
    assert [one.isr for one in cluster.image.topics_by_name["a"].partitions.values()] == [(2,), (2, 3), (3,)]


def test_the_last_isr_member_stays_in_the_isr_when_fenced() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    cluster.heartbeat(2, fence=True)
    cluster.heartbeat(1, fence=True)
    assert (epochs(cluster)[0], cluster.image.partition("a", 0).isr) == (-1, (1,))  # type: ignore[union-attr]
    cluster.heartbeat(2)
    assert epochs(cluster)[0] == -1, "broker 2 is not in the ISR"
    cluster.heartbeat(1)
    assert epochs(cluster)[0] == 1


def test_r9_an_allowed_unclean_election_marks_the_leader_as_recovering() -> None:
    cluster = Cluster(brokers=2, unclean_leader_election_enable=True)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    cluster.heartbeat(2, fence=True)
    cluster.heartbeat(1, fence=True)
    cluster.heartbeat(2)
    partition = cluster.image.partition("a", 0)
    assert partition is not None
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), 1)


def test_a_controlled_shutdown_waits_until_others_know_the_new_leaders() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={0: [1, 2]}))
    assert not cluster.heartbeat(1, shut_down=True).should_shut_down
    moved = cluster.image.offset
    assert epochs(cluster)[0] == 2
    cluster.heartbeat(2, offset=moved - 1)
    assert not cluster.heartbeat(1, shut_down=True).should_shut_down
    cluster.heartbeat(2, offset=moved)
    assert cluster.heartbeat(1, shut_down=True).should_shut_down
    assert cluster.image.brokers[1].fenced


def test_a_broker_that_stopped_cleanly_may_register_at_once() -> None:
    cluster = Cluster(brokers=2)
    assert cluster.heartbeat(2, shut_down=True).should_shut_down
    cluster.start(2, incarnation=2)
    assert cluster.image.brokers[2].active


def test_d9_a_stopped_broker_that_could_not_be_fenced_is_fenced_later() -> None:
    cluster = Cluster(brokers=2)
    request = _heartbeat(2, cluster.image.brokers[2].epoch)
    request.want_shut_down = True
    assert cluster.decide(request).response.should_shut_down, "its records are lost, because the disk is full"
    assert cluster.ask(FenceSilentBroker(), now_ms=9_000) == 2


def test_a_broker_without_leaders_may_stop_immediately() -> None:
    cluster = Cluster()
    assert cluster.heartbeat(1, shut_down=True).should_shut_down
    assert cluster.heartbeat(1, shut_down=True).should_shut_down, "a fenced broker may always stop"


def test_a_broker_fenced_during_its_shutdown_cannot_be_unfenced() -> None:
    cluster = Cluster()
    cluster.create(topic("a"))
    assert not cluster.heartbeat(1, shut_down=True).should_shut_down
    cluster.heartbeat(1, fence=True)
    assert cluster.image.brokers[1].fenced
    answer = cluster.heartbeat(1)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert epochs(cluster)[0] == -1
    cluster.start(1, incarnation=2)
    assert epochs(cluster)[0] == 1


def test_silent_brokers_are_fenced_one_by_one_longest_silent_first() -> None:
    cluster = Cluster(brokers=4)
    for broker_id, at in ((2, 2_000), (3, 1_000), (4, 9_500)):
        cluster.now_ms = at
        cluster.heartbeat(broker_id)
    assert cluster.controller.sessions.next_deadline_ms(cluster.image) == 10_000
    assert cluster.ask(FenceSilentBroker(), now_ms=9_999) is None
    assert cluster.ask(FenceSilentBroker(), now_ms=11_000) == 3
    assert cluster.ask(FenceSilentBroker(), now_ms=11_000) == 2
    assert cluster.ask(FenceSilentBroker(), now_ms=11_000) is None
    assert [broker.fenced for broker in cluster.image.brokers.values()] == [False, True, True, False]


def test_the_controllers_own_broker_needs_no_heartbeats() -> None:
    cluster = Cluster(brokers=2)
    cluster.heartbeat(2, fence=True)
    assert cluster.controller.sessions.next_deadline_ms(cluster.image) is None
    assert cluster.ask(FenceSilentBroker(), now_ms=1_000_000) is None
    cluster.heartbeat(2)
    cluster.create(topic("a", assignments={0: [2, 1]}))
    assert not cluster.heartbeat(2, shut_down=True).should_shut_down
    assert cluster.heartbeat(2, shut_down=True).should_shut_down, "broker 1 sent no heartbeat with a newer offset"


def test_a_new_controller_gives_unfenced_brokers_a_full_session() -> None:
    image = Cluster(brokers=1).image
    sessions = BrokerSessions(9_000)
    sessions.restore(image, 50_000)
    assert sessions.is_live(1, 58_999)
    assert not sessions.is_live(1, 59_000)


def test_unregistering_a_broker_moves_its_partitions() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={0: [2, 1]}))
    assert cluster.ask(UnregisterBrokerRequest(broker_id=2)).error_code == 0
    assert list(cluster.image.brokers) == [1]
    assert epochs(cluster)[0] == 1
    assert cluster.ask(UnregisterBrokerRequest(broker_id=2)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_controllers_own_broker_cannot_be_unregistered() -> None:
    cluster = Cluster(brokers=2)
    assert cluster.ask(UnregisterBrokerRequest(broker_id=1)).error_code == ErrorCode.INVALID_REQUEST


def test_a_replica_in_an_offline_directory_cannot_lead() -> None:
    cluster = Cluster()
    cluster.create(topic("a", 1, 1))
    request = cluster.registration(1, 2)
    request.log_dirs = [UUID(int=6001)]  # the replica's directory is missing
    cluster.register_own(request)
    cluster.heartbeat(1)
    assert epochs(cluster)[0] == -1


def test_the_controller_registers_together_with_its_own_broker() -> None:
    cluster = Cluster()
    cluster.start(1, incarnation=2)
    assert cluster.image.controllers[1].incarnation_id == cluster.image.brokers[1].incarnation_id
    assert cluster.image.controllers[1].features["metadata.version"] == (7, 30)
