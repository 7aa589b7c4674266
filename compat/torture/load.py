"""A load by real clients that is recorded as a history, and the read-back at its end.

One thread drives several idempotent producers and several readers with assigned partitions, all of librdkafka, so the
order of the lines is the order in which this process saw the events. Every record's value starts with an id that is
unique in the run, followed by bytes that depend on it. The history has the id with a digest of the whole value, so a
record with a changed byte is a different value for the checkers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type, to_line, value_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_BACK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """The parameters of the clients.

    Units   records: sends per producer in the whole run, unless something else ends it; payload_bytes: the largest
            value; max_in_flight: the most unfinished sends of a producer
    """

    topic: str
    partitions: int = 3
    producers: int = 3
    readers: int = 2
    records: int = 2_000
    payload_bytes: int = 200
    max_in_flight: int = 200
    seed: int = 0
    topic_config: dict[str, str] = field(default_factory=dict)
    replicas: int = 1
    pause_s: float = 0.001
    """Between two rounds of all clients; it determines the rate of the load."""


class Recorder:
    """Records events as they happen, and counts them. Threads may share it."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.counts: dict[tuple[Function, Type], int] = {}
        self.complaints: list[str] = []  # of clients that had to give up, which a correct broker never causes
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(
        self, process: str, function: Function, kind: Type, key: str, *,
        value: str | None = None, offset: int | None = None, epoch: int | None = None,
        transaction: str | None = None, error: str | None = None,
    ) -> None:  # fmt: skip
        with self._lock:
            at_ms = int((time.monotonic() - self._began) * 1000)
            self.counts[function, kind] = self.counts.get((function, kind), 0) + 1
            event = Event(
                at_ms=at_ms,
                process=process,
                function=function,
                type=kind,
                key=key,
                value=value,
                offset=offset,
                epoch=epoch,
                transaction=transaction,
                error=error,
            )
            self._events.append(event)

    def acknowledged(self) -> int:
        return self.counts.get((Function.SEND, Type.OK), 0)

    def history(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def text(self) -> str:
        """The history as lines of JSON."""
        return "".join(to_line(event) + "\n" for event in self.history())


class LoadProducer:
    """An idempotent producer that keeps some sends in flight and records their outcomes."""

    def __init__(self, name: str, bootstrap_servers: str, plan: Plan, recorder: Recorder, *, codec: str) -> None:
        self.name = name
        self.sent = 0
        self.in_flight = 0
        self._has_failed = False
        self._plan = plan
        self._recorder = recorder
        self._draws = Draws("load", plan.seed, name)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": name,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": self._draws.choice([0, 2, 10]),
                # Longer than any restart: unacknowledged batches are retried, and must not be duplicated.
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 2,
            }
        )

    def is_done(self, limit: int) -> bool:
        return self.in_flight == 0 and (self.sent >= limit or self._has_failed)

    def step(self, limit: int) -> None:
        """Send a burst if there is room, up to `limit` records in all, and process acknowledgements."""
        if self._has_failed:
            self._poll()
            return
        burst = min(self._draws.between(1, 20), self._plan.max_in_flight - self.in_flight)
        for _ in range(min(burst, limit - self.sent)):
            if not self._has_failed:
                self._send()
        self._poll()

    def _poll(self) -> None:
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._on_error(error.args[0])

    def _on_error(self, error: KafkaError) -> None:
        """A producer gives up if the broker contradicts its earlier acknowledgements."""
        if error.fatal() and not self._has_failed:
            self._has_failed = True
            self._recorder.complaints.append(f"{self.name} cannot send any more: {error}")
            self._producer.purge()

    def _send(self) -> None:
        self.sent += 1
        partition = self._draws.below(self._plan.partitions)
        payload = f"{self.name}-{self.sent}|".encode() + self._draws.bytes(self._draws.below(self._plan.payload_bytes))
        key, value = f"{self._plan.topic}-{partition}", value_of(payload)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self.in_flight -= 1
            if error is None:
                self._recorder.note(self.name, Function.SEND, Type.OK, key, value=value, offset=message.offset())
            else:
                # Only a record that was purged from the queue is known not to have left this process.
                kind = Type.FAIL if error.code() == KafkaError._PURGE_QUEUE else Type.INFO
                self._recorder.note(self.name, Function.SEND, kind, key, value=value, error=error.name())

        self._recorder.note(self.name, Function.SEND, Type.INVOKE, key, value=value)
        try:
            self._producer.produce(self._plan.topic, value=payload, partition=partition, on_delivery=on_delivery)
        except KafkaException as error:
            self._on_error(error.args[0])
            self._recorder.note(self.name, Function.SEND, Type.FAIL, key, value=value, error="not sent")
        else:
            self.in_flight += 1


def consumer(bootstrap_servers: str, name: str, *, isolation: str = "read_committed") -> Consumer:
    """A consumer that reads what its caller assigns to it."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": name,
            "group.id": name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # A reader whose offset is out of range must not be silently reset to another offset.
            "auto.offset.reset": "error",
            "check.crcs": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        }
    )


class LoadReader:
    """A reader of committed records with all partitions assigned, which now and then seeks to another offset."""

    def __init__(self, name: str, bootstrap_servers: str, plan: Plan, recorder: Recorder) -> None:
        self.name = name
        self._plan = plan
        self._recorder = recorder
        self._draws = Draws("load", plan.seed, name)
        self._consumer = consumer(bootstrap_servers, name)
        self._assign([0] * plan.partitions)
        self._reached = [0] * plan.partitions

    def step(self) -> None:
        for message in self._consumer.consume(200, timeout=0):
            error = message.error()
            if error is not None:
                if error.code() in {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}:
                    self._recorder.complaints.append(f"{self.name} is out of range: {error}")
                continue  # the connection is down or being restored: the reader continues by itself
            partition, offset = note_message(self._recorder, self.name, Function.POLL, message)
            self._reached[partition] = offset + 1
        if self._draws.chance(0.002):
            self._assign([self._draws.below(reached + 1) for reached in self._reached])

    def close(self) -> None:
        self._consumer.close()

    def _assign(self, offsets: Sequence[int]) -> None:
        for partition, offset in enumerate(offsets):
            self._recorder.note(self.name, Function.ASSIGN, Type.OK, f"{self._plan.topic}-{partition}", offset=offset)
        self._consumer.assign(
            [TopicPartition(self._plan.topic, partition, offset) for partition, offset in enumerate(offsets)]
        )


def note_message(recorder: Recorder, name: str, function: Function, message: Message) -> tuple[int, int]:
    """Record a message that was read; returns its partition and offset."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None, "a message that was read has a place"
    assert offset is not None, "a message that was read has a place"
    payload = message.value() or b""
    key, epoch = f"{message.topic()}-{partition}", message.leader_epoch()
    recorder.note(name, function, Type.OK, key, value=value_of(payload), offset=offset, epoch=epoch)
    return partition, offset


def create_topic(bootstrap_servers: str, plan: Plan) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = NewTopic(
        plan.topic, num_partitions=plan.partitions, replication_factor=plan.replicas, config=plan.topic_config
    )
    admin.create_topics([topic])[plan.topic].result(timeout=30)


def run_load(
    bootstrap_servers: str,
    plan: Plan,
    recorder: Recorder,
    *,
    disturb: Callable[[int], None] = lambda _: None,
    is_over: Callable[[], bool] | None = None,
    timeout_s: float = 300,
) -> None:
    """Drive the clients until all sends are complete, or with `is_over` until it returns True.

    `disturb` is called in each round with the number of acknowledgements so far.

    Errors: TimeoutError when the time is up, with the progress so far.
    """
    producers = [
        LoadProducer(f"p{number}", bootstrap_servers, plan, recorder, codec=CODECS[number % len(CODECS)])
        for number in range(plan.producers)
    ]
    with contextlib.ExitStack() as stack:
        readers = [LoadReader(f"r{number}", bootstrap_servers, plan, recorder) for number in range(plan.readers)]
        for reader in readers:
            stack.callback(reader.close)
        deadline = time.monotonic() + timeout_s
        limit = plan.records if is_over is None else sys.maxsize
        while not all(producer.is_done(limit) for producer in producers):
            if is_over is not None and is_over():
                limit = 0
            for producer in producers:
                producer.step(limit)
            for reader in readers:
                reader.step()
            disturb(recorder.acknowledged())
            if time.monotonic() > deadline:
                reached = {producer.name: (producer.sent, producer.in_flight) for producer in producers}
                raise TimeoutError(f"(sent, in flight) after {timeout_s} s: {reached}")
            time.sleep(plan.pause_s)


def read_back(bootstrap_servers: str, plan: Plan, recorder: Recorder, *, source: str = "leader") -> None:
    """Read every partition from its start to its end into the history, with the records of aborted transactions.

    Errors: TimeoutError if the end is not reached.
    """
    reader = consumer(bootstrap_servers, "read-back", isolation="read_uncommitted")
    try:
        for partition in range(plan.partitions):
            start, end = reader.get_watermark_offsets(TopicPartition(plan.topic, partition), timeout=30)
            reader.assign([TopicPartition(plan.topic, partition, OFFSET_BEGINNING)])
            for message in messages_before(reader, end if end > start else 0):
                note_message(recorder, source, Function.FINAL, message)
            key = f"{plan.topic}-{partition}"
            recorder.note(source, Function.BOUNDS, Type.OK, key, offset=end, value=str(start))
    finally:
        reader.close()


def messages_before(reader: Consumer, end: int) -> Iterator[Message]:
    """The records below `end` of the reader's only partition.

    The last offset may belong to a record that readers do not see, so the position counts, not the records.
    """
    deadline = time.monotonic() + READ_BACK_TIMEOUT_S
    position = 0
    while position < end:
        for message in reader.consume(500, timeout=0.2):
            if message.error() is None and (message.offset() or 0) < end:
                yield message
        position = max(0, *(place.offset for place in reader.position(reader.assignment())))
        if time.monotonic() > deadline:
            raise TimeoutError(f"read up to {position} of {end}")
