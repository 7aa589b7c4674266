"""A client of several scripted brokers: leaders that move, and requests while other responses are due."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producing import NotStored, Producer
from tests.client.peers import Peers
from tests.client.test_producing import INIT_PRODUCER_ID, PRODUCE, VALUES, Leader, send
from wire.compression import Codec
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

FETCH, OFFSET_COMMIT, FIND_COORDINATOR = 1, 8, 10
NEW_ID = InitProducerIdResponse(producer_id=7, producer_epoch=0)
AT_ONCE = {"retry_backoff_ms": 0}


def refused(code: int) -> ProduceResponse:
    answer = PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


def test_records_go_to_the_new_leader() -> None:
    peers, leader = Peers({PRODUCE: 9, INIT_PRODUCER_ID: 4}), Leader({})

    def moved(_request: object) -> ProduceResponse:
        peers.leader = 2
        return refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    old, new = {PRODUCE: moved, INIT_PRODUCER_ID: NEW_ID}, {PRODUCE: leader.produce}
    with peers.serve(old, new) as addresses, Cluster({"bootstrap_servers": addresses[:1], **AT_ONCE}) as cluster:
        producer = Producer(cluster, "t", {}, acks=-1, codec=Codec.NONE, is_idempotent=True)
        send(producer, VALUES)
    assert leader.stored == VALUES


def test_unacknowledged_records_go_to_the_new_leader() -> None:
    peers = Peers({PRODUCE: 9})
    arrived = []

    def moved(_request: object) -> None:
        peers.leader = 2
        raise OSError  # closes the connection, as the only sign of an error

    with (
        peers.serve({PRODUCE: moved}, {PRODUCE: arrived.append}) as addresses,
        Cluster({"bootstrap_servers": addresses[:1], **AT_ONCE}) as cluster,
    ):
        producer = Producer(cluster, "t", {}, acks=0, codec=Codec.NONE, is_idempotent=False)
        for _ in range(10_000):
            send(producer, [b"x"])
            if arrived:
                break
    assert arrived


def test_nothing_is_sent_twice_without_retries() -> None:
    peers = Peers({PRODUCE: 9})
    arrived = []

    def produce(request: Any) -> ProduceResponse:
        arrived.append(request)
        return refused(ErrorCode.REQUEST_TIMED_OUT)

    with (
        peers.serve({PRODUCE: produce}) as addresses,
        Cluster({"bootstrap_servers": addresses, **AT_ONCE}) as cluster,
        pytest.raises(NotStored) as caught,
    ):
        send(Producer(cluster, "t", {"retries": 0}, acks=-1, codec=Codec.NONE, is_idempotent=False), [b"x"])
    assert (caught.value.number, caught.value.reason.code) == (0, ErrorCode.REQUEST_TIMED_OUT)
    assert len(arrived) == 1
