"""A producer of one topic. It has no thread: `send` writes full batches, and `flush` waits for all acknowledgements.

Theory of operation: batches are sent ahead without waiting, up to a number for each broker. If one fails, the producer
first receives the answers to all others. Then it repeats the unacknowledged batches of each partition in order, one at
a time and with their sequence numbers, so that an idempotent producer writes no record twice.

A broker accepts any sequence number as a producer's first one in a partition. So an idempotent producer waits for the
answer to a partition's first batch before it sends the second one, which would otherwise take its place if it failed.

Source  KIP-98; KafkaProducer of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial as bound
from itertools import accumulate, chain
from typing import Any, Final, Self

from kbroker.client.cluster import Cluster, Partition, throttled
from kbroker.client.operations import PRODUCE_BY_NAME, new_producer_id, produce_request
from wire.batch_header import MAX_SEQUENCE, NO_PRODUCER_ID, NO_SEQUENCE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError, check
from wire.partitioner import partition_of_key
from wire.record_batch import Record, build_batch
from wire.record_values import ValueEncoder

SETTINGS: Final[Mapping[str, Any]] = {
    "allow_auto_create_topics": True,
    "batch_size": 16_384,
    "buffer_memory": 32 << 20,
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
    """A record was not written: its number, and the reason; `first` is the first record that may be lost with it."""

    def __init__(self, number: int, reason: KafkaError, *, first: int) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason
        self.first = first


class RecordTooLarge(KafkaError):
    """A record with more bytes than max.request.size: its number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)
        self.number = number


Encode = Callable[..., bytes]


@dataclass(slots=True, eq=False)
class _Batch:
    """Its records are objects, or values that `encode` makes records of."""

    partition: Partition
    encode: Encode = build_batch
    base_sequence: int = NO_SEQUENCE
    records: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class Producer:
    """A context manager that flushes, unless it is interrupted (KeyboardInterrupt) or a record was not stored.

    Shape   it gets either records or values, with consecutive numbers
    Errors  RecordTooLarge, after which it goes on; NotStored
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
        self._open_bytes = 0
        self._adding: int | None = None  # the number of the first record that is being added
        self._turn = 0
        self._unacknowledged: dict[Partition, deque[_Batch]] = defaultdict(deque)
        self._in_flight: dict[int, deque[_Batch]] = defaultdict(deque)
        self._sequences: dict[Partition, int] = defaultdict(int)
        self._begun: set[Partition] = set()  # the broker has stored a batch, and knows the next sequence number
        self.creates_topic = False
        """Whether the broker was asked to create the topic, because it did not exist."""
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
            (found,) = self._cluster.metadata([self._topic], creates=self.creates_topic).topics
            missing = found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if missing and not self.creates_topic and self._settings["allow_auto_create_topics"]:
                self.creates_topic = True
                (found,) = self._cluster.metadata([self._topic], creates=True).topics
            check(found.error_code)
            led = [each.partition_index for each in found.partitions if each.leader_id >= 0]
            return len(found.partitions), led or list(range(len(found.partitions)))

        return self._cluster.retry(attempt, timeout_ms=self._settings["max_block_ms"])

    def send(self, record: Record, *, partition: int | None, number: int) -> None:
        """Add a record to the batch of its partition; without a partition, its key or else chance chooses one."""
        size = most_bytes(record)
        if size > self._settings["max_request_size"]:
            raise self._too_large(size, number)
        if partition is None and record.key is not None:
            partition = partition_of_key(record.key, self.partition_count)
        place = self._topic, self._cluster.env.random.choice(self._available) if partition is None else partition
        self._adding = number
        self._add(place, build_batch, [record], [number], size)
        self._adding = None

    def _too_large(self, size: int, number: int) -> RecordTooLarge:
        said = f"the record has {size} bytes, more than max.request.size={self._settings['max_request_size']}"
        return RecordTooLarge(number, said)

    def send_values(
        self, values: Sequence[bytes], encoder: ValueEncoder, *, timestamp_ms: int, partition: int | None, number: int
    ) -> None:
        """Add records that differ only in their values; the first one has this number.

        Without partition and key they go to the partitions in turn.
        """
        extra = encoder.extra_bytes
        most = self._settings["max_request_size"] - extra
        if max(map(len, values)) > most:
            before = next(i for i, value in enumerate(values) if len(value) > most)
            if before:
                rest = values[:before]
                self.send_values(rest, encoder, timestamp_ms=timestamp_ms, partition=partition, number=number)
            raise self._too_large(len(values[before]) + extra, number + before)
        if partition is None and encoder.key is not None:
            partition = partition_of_key(encoder.key, self.partition_count)
        places = self._available if partition is None else [partition]
        encode = bound(encoder.batch, timestamp_ms=timestamp_ms)
        step = len(places)
        for first in range(min(step, len(values))):
            self._adding = number + first
            place = self._topic, places[(self._turn + first) % step]
            mine = values[first::step]
            for start, end, size in self._portions(place, mine, extra):
                numbers = range(number + first + start * step, number + first + end * step, step)
                self._add(place, encode, mine[start:end], numbers, size)
        self._adding = None
        self._turn += len(values)

    def _portions(self, place: Partition, values: Sequence[bytes], extra: int) -> Iterator[tuple[int, int, int]]:
        """Start, end and bytes of portions of the values, each of which fits into the open batch, or into a new one."""
        ends = list(accumulate(values, lambda total, value: total + len(value) + extra, initial=0))
        most = self._settings["batch_size"]
        start = 0
        while start < len(values):
            batch = self._open.get(place)
            end = start if batch is None else bisect_right(ends, ends[start] + most - batch.size) - 1
            if end <= start:  # a new batch, of at least one record
                end = max(bisect_right(ends, ends[start] + most) - 1, start + 1)
            yield start, end, ends[end] - ends[start]
            start = end

    def _add(self, place: Partition, encode: Encode, records: Sequence[Any], numbers: Sequence[int], size: int) -> None:
        batch = self._open.get(place)
        if batch is not None and batch.size + size > self._settings["batch_size"]:
            self._dispatch(place)
            batch = None
        if batch is None:
            batch = self._open[place] = _Batch(place, encode)
        batch.records += records
        batch.numbers += numbers
        batch.size += size
        self._open_bytes += size
        if self._open_bytes > self._settings["buffer_memory"]:
            self._dispatch_all()

    def proceed(self) -> bool:
        """Receive an answer that is due, or else send what is open. Returns whether an answer is still due.

        A caller without more records repeats it, so that records wait for one answer at most, and errors for none.
        """
        for node_id, batches in self._in_flight.items():
            if batches:
                self._receive(node_id)
                break
        else:
            self._dispatch_all()
        return bool(self._open) or any(self._in_flight.values())

    def flush(self) -> None:
        """Send all records and wait until they are acknowledged."""
        self._dispatch_all()
        self._receive_all()

    def _receive_all(self) -> None:
        for node_id, batches in list(self._in_flight.items()):  # recovery may add the broker that a leader moved to
            while batches:
                self._receive(node_id)

    def _dispatch_all(self) -> None:
        for place in list(self._open):
            self._dispatch(place)

    def _dispatch(self, place: Partition) -> None:
        """Send an open batch, without waiting for its answer."""
        batch = self._open.pop(place)
        self._open_bytes -= batch.size
        if self._producer[0] != NO_PRODUCER_ID:
            batch.base_sequence = self._sequences[place]
            self._sequences[place] = (batch.base_sequence + len(batch.records)) & MAX_SEQUENCE
        self._unacknowledged[place].append(batch)
        if batch.base_sequence != NO_SEQUENCE and len(self._unacknowledged[place]) > 1 and place not in self._begun:
            self._receive_all()
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
        data = batch.encode(
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
        answer = self._cluster.receive(node_id)
        throttled(self._cluster, answer)
        (each,) = answer.responses[0].partition_responses
        if each.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            said = next((one.batch_index_error_message for one in each.record_errors), None) or each.error_message
            check(each.error_code, said)
        self._begun.add(batch.partition)
        self._unacknowledged[batch.partition].remove(batch)

    def _recover(self, failure: KafkaError) -> None:
        """Receive all answers, then write what is unacknowledged in order. Without retries, nothing is sent twice."""
        for node_id, batches in self._in_flight.items():
            while batches:
                with suppress(KafkaError):
                    self._accept(node_id)
        if not self._settings["retries"] and failure.code is not ErrorCode.MESSAGE_TOO_LARGE:
            refused = [batch.numbers[0] for waiting in self._unacknowledged.values() for batch in waiting]
            raise NotStored(min(refused), failure, first=self._first_lost()) from failure
        for waiting in self._unacknowledged.values():
            while waiting:
                self._store(waiting)

    def _first_lost(self) -> int:
        """The number of the first record that the broker has not acknowledged."""
        waiting = chain(self._open.values(), *self._unacknowledged.values())
        adding = () if self._adding is None else (self._adding,)
        return min(chain(adding, (batch.numbers[0] for batch in waiting)))

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
                raise NotStored(batch.numbers[0], error, first=self._first_lost()) from error
            half = len(batch.records) // 2
            self._settings["batch_size"] = batch.size // 2  # the next ones need no split
            sequence = batch.base_sequence
            rest = sequence if sequence == NO_SEQUENCE else (sequence + half) & MAX_SEQUENCE
            records, numbers, size = batch.records, batch.numbers, batch.size // 2
            first = _Batch(batch.partition, batch.encode, sequence, records[:half], numbers[:half], size)
            second = _Batch(batch.partition, batch.encode, rest, records[half:], numbers[half:], size)
            waiting.popleft()
            waiting.extendleft((second, first))
