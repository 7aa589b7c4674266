"""Which markers go to which broker, and what becomes of the answers."""

from __future__ import annotations

import pytest

from kbroker.coordinator.transactions.markers import (
    NO_LEADER,
    PARTITIONS_IN_REQUEST,
    Ending,
    Markers,
    markers_request,
)
from kbroker.coordinator.transactions.state import PREPARE_ABORT, PREPARE_COMMIT, TopicPartition, Transaction
from wire.errors import ErrorCode
from wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)


def ending(*partitions: TopicPartition, producer_id: int = 1, is_commit: bool = True) -> Ending:
    made = Ending(
        Transaction(
            f"x{producer_id}",
            producer_id,
            5,
            state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            partitions=dict.fromkeys(partitions),
            client_version=2,
        )
    )
    made.coordinator_epoch = 9
    return made


def markers(leaders: dict[TopicPartition, int]) -> Markers:
    return Markers(lambda topic, index: leaders.get((topic, index)))


def answer(codes: dict[TopicPartition, int], *, producer_id: int = 1) -> WriteTxnMarkersResponse:
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic, partitions=[WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)]
        )
        for (topic, index), code in codes.items()
    ]
    return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=producer_id, topics=topics)])


A, B, C = ("t", 0), ("t", 1), ("u", 0)


def test_each_broker_gets_the_markers_of_all_transactions_in_one_request() -> None:
    found = markers({A: 1, B: 2, C: 1})
    first, second = ending(A, B, C), ending(C, producer_id=2, is_commit=False)
    for one in (first, second):
        found.add(one, list(one.remaining))
    assert set(found.by_broker) == {1, 2}
    request = markers_request(found.take(1))
    assert [(marker.producer_id, marker.producer_epoch, marker.transaction_result) for marker in request.markers] == [
        (1, 5, True),
        (2, 5, False),
    ]
    assert {(marker.coordinator_epoch, marker.transaction_version) for marker in request.markers} == {(9, 2)}
    assert [(topic.name, topic.partition_indexes) for topic in request.markers[0].topics] == [("t", [0]), ("u", [0])]
    assert found.take(2) == {first: [B]}
    assert not found.take(1)
    assert not found.take(2)


def test_a_request_has_a_bounded_number_of_partitions() -> None:
    partitions = [("t", index) for index in range(2 * PARTITIONS_IN_REQUEST + 1)]
    found = markers(dict.fromkeys(partitions, 1))
    one = ending(*partitions)
    found.add(one, partitions)
    sizes = []
    while sent := found.take(1):
        sizes.append(len(sent[one]))
    assert sizes == [PARTITIONS_IN_REQUEST, PARTITIONS_IN_REQUEST, 1]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_transaction_is_ready_when_the_last_marker_is_written(code: int) -> None:
    found, one = markers({A: 1, B: 2}), ending(A, B)
    found.add(one, list(one.remaining))
    found.on_response(found.take(1), answer({A: code}))
    assert not found.take_ready()
    found.on_response(found.take(2), answer({B: 0}))
    assert found.take_ready() == [one]
    assert not found.waiting


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        None,
    ],
)
def test_a_marker_that_is_not_written_is_sent_to_the_leader_of_then(code: int | None) -> None:
    leaders = {A: 1, B: 1}
    found, one = markers(leaders), ending(A, B)
    found.add(one, list(one.remaining))
    failed = found.on_response(found.take(1), answer({A: 0} if code is None else {A: 0, B: code}))
    assert list(failed.values()) == [[B]]
    leaders[B] = 7
    for waiting, partitions in found.take_waiting().items():
        found.add(waiting, partitions)
    assert found.take(7) == {one: [B]}
    found.on_failure({one: [B]})
    assert found.take_waiting() == {one: [B]}
    assert not found.take_ready()


def test_partitions_without_a_leader_wait_and_deleted_ones_are_dropped() -> None:
    leaders = {A: NO_LEADER}
    found, one = markers(leaders), ending(A, B)
    found.add(one, list(one.remaining))
    assert not found.by_broker
    assert found.take_waiting() == {one: [A]}
    assert list(one.remaining) == [A]
    del leaders[A]
    found.add(one, [A])
    assert found.take_ready() == [one]


def test_nothing_is_sent_for_a_transaction_that_another_broker_coordinates() -> None:
    found, one, other = markers({A: 1}), ending(A), ending(A, producer_id=2)
    for each in (one, other):
        found.add(each, [A])
    one.is_cancelled = True
    assert found.take(1) == {other: [A]}
    found.add(one, [A])
    assert not found.take(1)
    assert not found.take_ready()


def test_a_transaction_without_partitions_is_ready_at_once() -> None:
    found, one = markers({}), ending()
    found.add(one, [])
    assert found.take_ready() == [one]
