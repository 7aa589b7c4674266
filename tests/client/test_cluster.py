"""A client of several scripted brokers: leaders that move, and requests while other responses are due."""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext, SSLError
from threading import Thread
from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.consuming import Consumer
from kbroker.client.operations import Committed, commit_offsets
from kbroker.client.producing import NotStored, Producer
from tests.client.peers import Peers
from tests.client.test_producing import INIT_PRODUCER_ID, PRODUCE, VALUES, Leader, send
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
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


def test_a_closed_connection_is_not_asked() -> None:
    peers = Peers({FIND_COORDINATOR: 3})

    def close(_request: object) -> None:
        raise OSError  # closes the connection

    first, second = {FIND_COORDINATOR: close}, {}
    with peers.serve(first, second) as addresses, Cluster({"bootstrap_servers": addresses[:1], **AT_ONCE}) as cluster:
        node = cluster.node(None)
        cluster.send(FindCoordinatorRequest(key="g"), node, is_answered=False)
        assert cluster.has_answer(node, 10_000), "the end of the connection"
        assert [topic.name for topic in cluster.metadata(None).topics] == ["t"]


def test_unacknowledged_records_go_to_the_new_leader() -> None:
    peers = Peers({PRODUCE: 9})
    arrived: list[object] = []

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
    arrived: list[object] = []

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


def test_a_response_that_is_due_is_not_mistaken() -> None:
    peers = Peers({INIT_PRODUCER_ID: 4})
    with (
        peers.serve({INIT_PRODUCER_ID: NEW_ID}) as addresses,
        Cluster({"bootstrap_servers": addresses}) as cluster,
    ):
        cluster.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 1)
        assert cluster.metadata(["t"]).topics[0].name == "t"
        assert cluster.receive(1).producer_id == 7


def test_an_unknown_error_of_a_fetch_is_reported() -> None:
    answer = PartitionData(partition_index=0, error_code=999, high_watermark=-1, aborted_transactions=None, records=b"")
    fetched = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[answer])])
    peers = Peers({FETCH: 11})
    with peers.serve({FETCH: fetched}) as addresses, Cluster({"bootstrap_servers": addresses}) as cluster:
        consumer = Consumer(cluster, {}, is_committed_only=False)
        consumer.assign({("t", 0): 0})
        with pytest.raises(KafkaError) as caught:
            consumer.poll(timeout_ms=1_000)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_commit_waits_for_a_coordinator_that_is_loading() -> None:
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
    peers = Peers({OFFSET_COMMIT: 7, FIND_COORDINATOR: 2})

    def commit(_request: object) -> OffsetCommitResponse:
        answer = OffsetCommitResponsePartition(partition_index=0, error_code=codes.pop(0))
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[answer])])

    def find(_request: object) -> FindCoordinatorResponse:
        ((node_id, host, port),) = peers.places()
        return FindCoordinatorResponse(node_id=node_id, host=host, port=port)

    with (
        peers.serve({OFFSET_COMMIT: commit, FIND_COORDINATOR: find}) as addresses,
        Cluster({"bootstrap_servers": addresses, **AT_ONCE}) as cluster,
    ):
        assert commit_offsets(cluster, "g", {("t", 0): Committed(5)}) == {("t", 0): 0}
    assert not codes


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_the_error_of_a_topic_is_reported(code: ErrorCode, expected: ErrorCode) -> None:
    peers = Peers({})
    peers.topic_error = code
    with (
        peers.serve({}) as addresses,
        Cluster({"bootstrap_servers": addresses, **AT_ONCE}) as cluster,
        pytest.raises(KafkaError) as caught,
    ):
        cluster.retry(lambda: cluster.leader(("t", 0)), [("t", 0)], timeout_ms=50)
    assert caught.value.code is expected


def test_a_certificate_that_is_not_accepted_is_reported_at_once(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=another"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    shaken: list[object] = []

    def shake(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with suppress(SSLError), context.wrap_socket(listener.accept()[0], server_side=True):
                    pass
                shaken.append(listener)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=shake, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        settings = {"bootstrap_servers": [address], "security_protocol": "SSL", **AT_ONCE}
        with pytest.raises(KafkaError, match="certificate is not accepted: self-signed") as caught:
            Cluster({**settings, "bootstrap_timeout_ms": 300})
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=20)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert len(shaken) <= 1
