"""A transactional producer of librdkafka whose history is recorded, and what is read of its transactions in the end.

It works in a thread of its own, because a call that ends a transaction waits until the coordinator has answered. Its
lines are correct in any order relative to those of other clients: a request to commit is recorded before it is sent,
and an outcome after it is known.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from compat.background import Background
from compat.oracle.raw import RawConnection
from compat.tiered.records import base_offset, last_offset, whole_batches
from compat.torture.load import Plan, Recorder, consumer, messages_before, note_message
from kbroker.testing.draws import Draws
from kbroker.testing.history import Function, Type, value_of

PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.02
COMMITTED: Final = "read-committed"
"""The reader of `read_committed_back`."""
_CONTROL: Final = 0x20


class LoadTransactions(Background):
    """A context manager: transactions over all partitions until the end of the block, some of them aborted."""

    def __init__(self, bootstrap_servers: str, plan: Plan, recorder: Recorder, *, name: str = "x0") -> None:
        super().__init__(self._run)
        self.name = name
        self._plan = plan
        self._recorder = recorder
        self._draws = Draws("load", plan.seed, name)
        self._sent = self._begun = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": name,
                "transactional.id": f"{plan.topic}-{name}",
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 2,
            }
        )

    def __enter__(self) -> Self:
        # Before the first fault, because the first request creates the topic of the coordinators.
        self._until_answered(lambda: self._producer.init_transactions(PATIENCE_S))
        return super().__enter__()

    def _run(self) -> None:
        try:
            while not self.over.wait(max(PAUSE_S, self._plan.pause_s)):
                self._transact()
        except KafkaException as error:
            self._recorder.complaints.append(f"{self.name} cannot go on: {error}")

    def _transact(self) -> None:
        """One transaction. Errors: KafkaException if the producer cannot have another one."""
        self._begun += 1
        transaction = f"{self.name}/{self._begun}"
        self._producer.begin_transaction()
        try:
            for _ in range(self._draws.between(1, 12)):
                self._send(transaction)
            deadline = time.monotonic() + PATIENCE_S
            while len(self._producer) and time.monotonic() < deadline:
                self._producer.poll(0.1)  # unlike `flush`, it calls no on_delivery after it has met a fatal error
            if not self._draws.chance(0.3):
                self._commit(transaction)
                return
        except KafkaException as error:
            if error.args[0].fatal():
                raise
        self._until_answered(lambda: self._producer.abort_transaction(PATIENCE_S))

    def _commit(self, transaction: str) -> None:
        outcome = Type.INFO
        self._recorder.note(self.name, Function.TXN, Type.INVOKE, "", value=transaction)
        try:
            self._until_answered(lambda: self._producer.commit_transaction(PATIENCE_S))
            outcome = Type.OK
        finally:
            self._recorder.note(self.name, Function.TXN, outcome, "", value=transaction)

    def _until_answered(self, call: Callable[[], None]) -> None:
        """Repeat a call while its error says that this may help."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _send(self, transaction: str) -> None:
        self._sent += 1
        partition = self._draws.below(self._plan.partitions)
        payload = f"{self.name}-{self._sent}|".encode() + self._draws.bytes(self._draws.below(self._plan.payload_bytes))
        key, value = f"{self._plan.topic}-{partition}", value_of(payload)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            kind = Type.OK if error is None else Type.FAIL if error.code() == KafkaError._PURGE_QUEUE else Type.INFO
            self._recorder.note(
                self.name, Function.SEND, kind, key, value=value, transaction=transaction,
                offset=message.offset() if error is None else None, error=None if error is None else error.name(),
            )  # fmt: skip

        self._recorder.note(self.name, Function.SEND, Type.INVOKE, key, value=value, transaction=transaction)
        self._producer.produce(self._plan.topic, payload, partition=partition, on_delivery=on_delivery)


def read_committed_back(bootstrap_servers: str, plan: Plan, recorder: Recorder) -> None:
    """Read every partition from its start to its end as a reader of committed records.

    Errors: TimeoutError if the end is not reached, because a transaction is still open.
    """
    reader = consumer(bootstrap_servers, COMMITTED)
    try:
        for partition in range(plan.partitions):
            key = f"{plan.topic}-{partition}"
            start, end = reader.get_watermark_offsets(TopicPartition(plan.topic, partition), timeout=30)
            recorder.note(COMMITTED, Function.ASSIGN, Type.OK, key, offset=start)
            reader.assign([TopicPartition(plan.topic, partition, start)])
            for message in messages_before(reader, end if end > start else 0):
                note_message(recorder, COMMITTED, Function.POLL, message)
            recorder.note(COMMITTED, Function.POLL, Type.INFO, key, offset=end)
    finally:
        reader.close()


def note_markers(connection: RawConnection, topic: str, partition: int, recorder: Recorder, *, source: str) -> None:
    """Record the transaction markers of a partition, of whose leader this is a connection, and its stable offset."""
    key, offset, end = f"{topic}-{partition}", 0, 1
    deadline = time.monotonic() + PATIENCE_S
    while offset < end:
        assert time.monotonic() < deadline, f"read up to {offset} of {end}"
        part = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
        topics = [{"Topic": topic, "Partitions": [part]}]
        request = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "SessionEpoch": -1, "Topics": topics}
        found = connection.call("Fetch", 11, request)["Responses"][0]["Partitions"][0]
        assert found["ErrorCode"] == 0, found
        offset, end = max(offset, found["LogStartOffset"]), found["HighWatermark"]
        for batch in whole_batches(found["Records"] or b""):
            offset = last_offset(batch) + 1
            if struct.unpack_from(">h", batch, 21)[0] & _CONTROL:
                recorder.note(source, Function.FINAL, Type.INFO, key, offset=base_offset(batch), error="control")
        if offset >= end:
            stable = found["LastStableOffset"]
            recorder.note("leader", Function.STABLE, Type.OK, key, offset=stable, value=str(end))
