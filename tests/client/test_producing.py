"""The producer against a scripted leader: order, retries and duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producing import NotStored, Producer, RecordTooLarge, most_bytes
from tests.cli.scripted import Scripted
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from wire.record_batch import Record, batches
from wire.record_values import ValueEncoder

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
SERVED = {PRODUCE: 9, METADATA: 9, API_VERSIONS: 3, INIT_PRODUCER_ID: 4}


class Leader:
    """The leader of one partition, which checks sequence numbers. `faults` maps requests to errors.

    Shape  REQUEST_TIMED_OUT: the batch is stored nevertheless
    Note   as in Kafka, the first batch may have any sequence number
    """

    def __init__(self, faults: dict[int, ErrorCode], *, max_records: int = 100) -> None:
        self.stored: list[bytes | None] = []
        self.requests = 0
        self._faults = faults
        self._max_records = max_records

    def produce(self, request: Any) -> ProduceResponse:
        (batch,) = batches(bytes(request.topic_data[0].partition_data[0].records))
        fault = self._faults.get(self.requests, ErrorCode.NONE)
        self.requests += 1
        code = fault
        if batch.record_count > self._max_records:
            code = ErrorCode.MESSAGE_TOO_LARGE
        elif fault in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            if batch.base_sequence < len(self.stored):
                code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            elif batch.base_sequence > len(self.stored) > 0:
                code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                self.stored += [record.value for record in batch.records()]
        answer = PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])])


@contextmanager
def producing(leader: Leader, **settings: Any) -> Iterator[Producer]:
    def metadata(_request: object) -> MetadataResponse:
        host, _, port = peer.address.rpartition(":")
        partition = MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host=host, port=int(port))],
            topics=[MetadataResponseTopic(name="t", partitions=[partition])],
        )

    versions = [ApiVersion(api_key=key, min_version=0, max_version=newest) for key, newest in SERVED.items()]
    answers = {
        API_VERSIONS: ApiVersionsResponse(api_keys=versions),
        METADATA: metadata,
        INIT_PRODUCER_ID: InitProducerIdResponse(producer_id=7, producer_epoch=0),
        PRODUCE: leader.produce,
    }
    with Scripted(answers) as peer, Cluster({"bootstrap_servers": [peer.address], "retry_backoff_ms": 0}) as cluster:
        yield Producer(cluster, "t", settings, acks=-1, codec=Codec.NONE, is_idempotent=True)


def send(producer: Producer, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        producer.send(Record(-1, 0, None, value), partition=None, number=number)
    producer.flush()


VALUES = [b"%d" % number for number in range(12)]


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
@pytest.mark.parametrize("at", [(0,), (5,), (11,), (3, 4, 9)])
def test_records_are_stored_once_and_in_order(fault: ErrorCode, at: tuple[int, ...]) -> None:
    leader = Leader(dict.fromkeys(at, fault))
    with producing(leader, batch_size=1) as producer:
        send(producer, VALUES)
    assert leader.stored == VALUES
    assert leader.requests > len(VALUES)


def test_a_batch_that_is_too_large_is_split() -> None:
    leader = Leader({}, max_records=2)
    with producing(leader) as producer:
        send(producer, VALUES)
    assert leader.stored == VALUES


def test_no_later_batch_is_stored_in_place_of_the_first_one() -> None:
    leader = Leader({}, max_records=4)
    with producing(leader, batch_size=8 * most_bytes(Record(-1, 0, None, VALUES[0]))) as producer:
        send(producer, VALUES[:10])  # of eight records, which the leader refuses, and of two
    assert leader.stored == VALUES[:10]


def test_a_refused_record_is_named() -> None:
    leader = Leader({4: ErrorCode.INVALID_RECORD, 5: ErrorCode.INVALID_RECORD})
    alone = {"batch_size": 1, "max_in_flight_requests_per_connection": 1}
    with producing(leader, **alone) as producer, pytest.raises(NotStored) as caught:
        send(producer, VALUES)
    assert (caught.value.number, caught.value.reason.code) == (4, ErrorCode.INVALID_RECORD)
    assert leader.stored == VALUES[:4]


def test_a_record_above_the_maximum_is_refused() -> None:
    with producing(Leader({}), max_request_size=100) as producer, pytest.raises(KafkaError, match="more than max"):
        send(producer, [b"x" * 101])


def end_with(producer: Producer, error: BaseException) -> None:
    """Send one record, and leave the producer by an error."""
    with producer:
        producer.send(Record(-1, 0, None, b"x"), partition=None, number=0)
        raise error


def test_an_interrupt_sends_nothing_more() -> None:
    leader = Leader({})
    with producing(leader) as producer, pytest.raises(KeyboardInterrupt):
        end_with(producer, KeyboardInterrupt())
    assert leader.requests == 0


def test_what_was_read_before_an_error_is_sent() -> None:
    leader = Leader({})
    with producing(leader) as producer, pytest.raises(ValueError, match="line 2"):
        end_with(producer, ValueError("line 2"))
    assert leader.stored == [b"x"]


def send_values(producer: Producer, values: list[bytes], *, first: int = 0) -> None:
    producer.send_values(values, ValueEncoder(), timestamp_ms=1, partition=None, number=first)


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_values_are_stored_once_and_in_order(fault: ErrorCode) -> None:
    leader = Leader(dict.fromkeys((0, 3), fault))
    with producing(leader, batch_size=60) as producer:
        send_values(producer, VALUES)
        send_values(producer, [b"x" * 100], first=12)
        send_values(producer, VALUES, first=13)
        producer.flush()
    assert leader.stored == [*VALUES, b"x" * 100, *VALUES]
    assert leader.requests > 8


def test_after_a_split_batches_are_smaller() -> None:
    leader = Leader({}, max_records=3)
    with producing(leader, batch_size=12 * 18) as producer:
        for _ in range(5):
            send_values(producer, VALUES)
            producer.flush()
    assert leader.stored == VALUES * 5
    assert leader.requests < 40  # and 45 if each batch was split again


def test_values_before_one_that_is_too_large_are_sent() -> None:
    leader = Leader({})
    with producing(leader, max_request_size=100) as producer:
        with pytest.raises(RecordTooLarge, match="more than max") as caught:
            send_values(producer, [b"a", b"b", b"x" * 100, b"c"], first=4)
        producer.flush()
    assert (caught.value.number, leader.stored) == (6, [b"a", b"b"])


def test_open_records_are_bounded() -> None:
    leader = Leader({})
    with producing(leader, buffer_memory=400, batch_size=1000) as producer:
        send_values(producer, VALUES)
        assert leader.stored == []
        send_values(producer, VALUES)
        assert producer.proceed() is False  # it was sent, and this is the answer
        assert leader.stored == VALUES * 2


def test_what_is_due_is_received_before_more_is_sent() -> None:
    leader = Leader({})
    with producing(leader) as producer:
        assert not producer.proceed()
        send_values(producer, VALUES)
        assert producer.proceed()  # sent
        assert not producer.proceed()  # acknowledged
    assert leader.stored == VALUES
