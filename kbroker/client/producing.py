"""A producer of one topic. It has no thread: `send` writes full batches, and `flush` waits for all acknowledgements.

Theory of operation: batches are sent ahead without waiting, up to a number for each broker. If one fails, the producer
first receives the answers to all others. Then it repeats the unacknowledged batches of each partition in order, one at
a time and with their sequence numbers, so that an idempotent producer writes no record twice.

Source  KIP-98; KafkaProducer of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import PRODUCE_BY_NAME, new_producer_id, produce_request
from wire.batch_header import MAX_SEQUENCE, NO_PRODUCER_ID, NO_SEQUENCE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError, check
from wire.partitioner import partition_of_key
from wire.record_batch import Record, build_batch

SETTINGS: Final[Mapping[str, Any]] = {
    "allow_auto_create_topics": True,
    "batch_size": 16_384,
    "delivery_timeout_ms": 120_000,
    "linger_ms": 0,
    "max_block_ms": 10_000,
    "max_in_flight_requests_per_connection": 5,
    "max_request_size": 1 << 20,
    "retries": 2**31 - 1,
}
RECORD_BYTES: Final = 36
"""A record's attributes and its longest varints: its own, key and value lengths, deltas, number of headers."""
HEADER_BYTES: Final = 10


def most_bytes(record: Record) -> int:
    """The maximum size of a record in a batch."""
    headers = sum(
        len(name.encode(errors="surrogateescape")) + len(value or b"") + HEADER_BYTES for name, value in record.headers
    )
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_BYTES


class NotStored(Exception):
    """A record was not written: its number, and the reason."""

    def __init__(self, number: int, reason: KafkaError) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason


@dataclass(slots=True, eq=False)
class _Batch:
    partition: Partition
    base_sequence: int = NO_SEQUENCE
    records: list[Record] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class Producer:
    """A context manager that flushes, unless it is interrupted (KeyboardInterrupt) or a record was not stored.

    Errors  KafkaError for a record that is too large; NotStored
    """

    def __init__(
        self, cluster: Cluster, topic: str, settings: Mapping[str, Any], *, acks: int, codec: Codec, is_idempotent: bool
    ) -> None:
        self._cluster = cluster
        self._settings = {**SETTINGS, **settings}
        self._topic = topic
        self._acks = acks
        self._codec = codec
        self._open: dict[Partition, _Batch] = {}
        self._unacknowledged: dict[Partition, deque[_Batch]] = defaultdict(deque)
        self._in_flight: dict[int, deque[_Batch]] = defaultdict(deque)
        self._sequences: dict[Partition, int] = defaultdict(int)
        self.partition_count, self._available = self._partitions()
        self._producer = new_producer_id(cluster) if is_idempotent else (NO_PRODUCER_ID, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        # An interrupt may have lost the answer to a batch, so what is sent after it could be out of order.
        if error is None or (isinstance(error, Exception) and not isinstance(error, NotStored)):
            self.flush()

    def _partitions(self) -> tuple[int, list[int]]:
        def attempt() -> tuple[int, list[int]]:
            (found,) = self._cluster.metadata([self._topic], creates=self._settings["allow_auto_create_topics"]).topics
            check(found.error_code)
            led = [each.partition_index for each in found.partitions if each.leader_id >= 0]
            return len(found.partitions), led or list(range(len(found.partitions)))

        return self._cluster.retry(attempt, timeout_ms=self._settings["max_block_ms"])

    def send(self, record: Record, *, partition: int | None, number: int) -> None:
        """Add a record to the batch of its partition; without a partition, its key or else chance chooses one."""
        size = most_bytes(record)
        if size > self._settings["max_request_size"]:
            said = f"the record has {size} bytes, more than max.request.size={self._settings['max_request_size']}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, said)
        if partition is None and record.key is not None:
            partition = partition_of_key(record.key, self.partition_count)
        place = self._topic, self._cluster.env.random.choice(self._available) if partition is None else partition
        batch = self._open.get(place)
        if batch is not None and batch.size + size > self._settings["batch_size"]:
            self._dispatch(place)
            batch = None
        if batch is None:
            batch = self._open[place] = _Batch(place)
        batch.records.append(record)
        batch.numbers.append(number)
        batch.size += size

    def flush(self) -> None:
        """Send all records and wait until they are acknowledged."""
        for place in list(self._open):
            self._dispatch(place)
        for node_id, batches in list(self._in_flight.items()):  # recovery may add the broker that a leader moved to
            while batches:
                self._receive(node_id)

    def _dispatch(self, place: Partition) -> None:
        """Send an open batch, without waiting for its answer."""
        batch = self._open.pop(place)
        if self._producer[0] != NO_PRODUCER_ID:
            batch.base_sequence = self._sequences[place]
            self._sequences[place] = (batch.base_sequence + len(batch.records)) & MAX_SEQUENCE
        self._unacknowledged[place].append(batch)
        try:
            node_id = self._cluster.leader(place)
            while len(self._in_flight[node_id]) >= self._settings["max_in_flight_requests_per_connection"]:
                self._receive(node_id)
            if batch in self._unacknowledged[place]:
                self._send(batch, node_id)
        except KafkaError as error:
            self._recover(error)

    def _send(self, batch: _Batch, node_id: int) -> None:
        producer_id, epoch = self._producer
        data = build_batch(
            batch.records, codec=self._codec, producer_id=producer_id, producer_epoch=epoch,
            base_sequence=batch.base_sequence,
        )  # fmt: skip
        request = produce_request({batch.partition: data}, acks=self._acks, timeout_ms=self._cluster.timeout_ms)
        self._cluster.send(request, node_id, at_most=PRODUCE_BY_NAME, is_answered=self._acks != 0)
        if self._acks:
            self._in_flight[node_id].append(batch)
        else:
            self._unacknowledged[batch.partition].remove(batch)

    def _receive(self, node_id: int) -> None:
        try:
            self._accept(node_id)
        except KafkaError as error:
            self._recover(error)

    def _accept(self, node_id: int) -> None:
        """Receive the answer to the oldest batch that was sent to a broker. Errors: KafkaError of the batch."""
        batch = self._in_flight[node_id].popleft()
        (each,) = self._cluster.receive(node_id).responses[0].partition_responses
        if each.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            said = next((one.batch_index_error_message for one in each.record_errors), None) or each.error_message
            check(each.error_code, said)
        self._unacknowledged[batch.partition].remove(batch)

    def _recover(self, failure: KafkaError) -> None:
        """Receive all answers, then write what is unacknowledged in order. Without retries, nothing is sent twice."""
        for node_id, batches in self._in_flight.items():
            while batches:
                with suppress(KafkaError):
                    self._accept(node_id)
        if not self._settings["retries"] and failure.code is not ErrorCode.MESSAGE_TOO_LARGE:
            lost = [batch.numbers[0] for waiting in self._unacknowledged.values() for batch in waiting]
            raise NotStored(min(lost), failure) from failure
        for waiting in self._unacknowledged.values():
            while waiting:
                self._store(waiting)

    def _store(self, waiting: deque[_Batch]) -> None:
        """Write the first of a partition's batches; a batch of several records that is too large is split."""
        batch = waiting[0]

        def attempt() -> None:
            if not self._acks:  # no answer says that the leader has moved
                self._cluster.refresh([batch.partition])
            node_id = self._cluster.leader(batch.partition)
            self._send(batch, node_id)
            if self._acks:
                self._accept(node_id)

        timeout_ms = self._settings["delivery_timeout_ms"] if self._settings["retries"] else 0
        try:
            self._cluster.retry(attempt, [batch.partition], timeout_ms=timeout_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(batch.records) == 1:
                raise NotStored(batch.numbers[0], error) from error
            half = len(batch.records) // 2
            sequence = batch.base_sequence
            rest = sequence if sequence == NO_SEQUENCE else (sequence + half) & MAX_SEQUENCE
            first = _Batch(batch.partition, sequence, batch.records[:half], batch.numbers[:half])
            second = _Batch(batch.partition, rest, batch.records[half:], batch.numbers[half:])
            waiting.popleft()
            waiting.extendleft((second, first))
