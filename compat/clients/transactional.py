"""Transactional producers and readers of every client, with one interface.

A reader reads up to the last record of each partition, which is `END` and written outside of transactions. So a test
also sees records that should not be there, and does not wait for a time to be sure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.errors import KafkaError as PythonError
from kafka.structs import OffsetAndMetadata

from compat.clients.members import AioMember, ConfluentMember, Got, KafkaPythonMember, Loop
from compat.waiting import until

Values = Mapping[int, Sequence[bytes]]
"""Values of each partition, in order."""
END = b"the end"
PATIENCE_S = 120.0
ISOLATION = ("read_committed", "read_uncommitted")


class Transactional(Protocol):
    """The interface of a producer for tests. Its constructor runs InitProducerId."""

    fenced: bool
    """Whether an error showed that a newer producer has the same transactional id."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, values: Values) -> None:
        """Send values, and wait until all are acknowledged, or refused because the producer is fenced."""

    def send_offsets(self, member: Any, offsets: Mapping[int, int]) -> None:
        """Add offsets of the topic and the group of a `Member` of the same client."""

    def commit(self) -> None:
        """Commit. A producer that is fenced only sets `fenced`."""

    def abort(self) -> None:
        """Abort."""

    def close(self) -> None:
        """Release its connections."""


class KafkaPythonTransactions:
    """kafka-python."""

    def __init__(self, servers: str, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> None:
        self.fenced = False
        self._producer = KafkaProducer(
            bootstrap_servers=servers,
            transactional_id=transactional_id,
            compression_type=None if codec == "none" else codec,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(PATIENCE_S * 1000),
        )
        self._producer.init_transactions()

    def _do(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except (ProducerFencedError, InvalidProducerEpochError):
            self.fenced = True
        except PythonError as error:  # after its first fatal error it only raises this one, with the cause in its text
            if ProducerFencedError.__name__ not in str(error):
                raise
            self.fenced = True

    def begin(self) -> None:
        """See `Transactional`."""
        self._producer.begin_transaction()

    def send(self, topic: str, values: Values) -> None:
        """See `Transactional`."""
        sent = [
            self._producer.send(topic, value, partition=partition)
            for partition, part in values.items()
            for value in part
        ]
        self._producer.flush(timeout=PATIENCE_S)
        for future in sent:
            self._do(lambda: future.get(timeout=PATIENCE_S))  # noqa: B023  (called here)

    def send_offsets(self, member: KafkaPythonMember, offsets: Mapping[int, int]) -> None:
        """See `Transactional`."""
        wanted = {TopicPartition(member.topic, each): OffsetAndMetadata(at, "", -1) for each, at in offsets.items()}
        self._producer.send_offsets_to_transaction(wanted, member.consumer.group_metadata())

    def commit(self) -> None:
        """See `Transactional`."""
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        """See `Transactional`."""
        self._producer.abort_transaction()

    def close(self) -> None:
        """See `Transactional`."""
        self._producer.close(timeout=5)


class ConfluentTransactions:
    """confluent-kafka."""

    def __init__(self, servers: str, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> None:
        self.fenced = False
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "compression.codec": codec,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 2,
            }
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        """See `Transactional`."""
        self._producer.begin_transaction()

    def send(self, topic: str, values: Values) -> None:
        """See `Transactional`.

        If librdkafka has noticed a fatal error, it refuses a record with the general code `_FATAL`; `commit` has the
        cause.
        """
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            errors.extend([] if error is None else [error])

        try:
            for partition, part in values.items():
                for value in part:
                    self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
            assert self._producer.flush(PATIENCE_S) == 0
        except KafkaException as error:
            errors.append(error.args[0])
        fatal = {KafkaError._FATAL, KafkaError._FENCED, KafkaError._PURGE_QUEUE, KafkaError.INVALID_PRODUCER_EPOCH}
        assert {error.code() for error in errors} <= fatal, errors

    def send_offsets(self, member: ConfluentMember, offsets: Mapping[int, int]) -> None:
        """See `Transactional`."""
        wanted = [ConfluentPartition(member.topic, partition, offset) for partition, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(wanted, member.consumer.consumer_group_metadata(), PATIENCE_S)

    def commit(self) -> None:
        """See `Transactional`."""
        try:
            self._producer.commit_transaction(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() not in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}:
                raise
            self.fenced = bool(error.args[0].fatal())

    def abort(self) -> None:
        """See `Transactional`."""
        self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        """See `Transactional`."""
        self._producer.purge()


class AioTransactions:
    """aiokafka."""

    def __init__(self, servers: str, transactional_id: str, *, codec: str = "none", timeout_ms: int = 60_000) -> None:
        self.fenced = False
        self._loop = Loop()

        async def started() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                transactional_id=transactional_id,
                compression_type=None if codec == "none" else codec,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer: AIOKafkaProducer = self._loop.do(started())

    def begin(self) -> None:
        """See `Transactional`."""
        self._loop.do(self._producer.begin_transaction())

    def send(self, topic: str, values: Values) -> None:
        """See `Transactional`."""

        async def send() -> None:
            futures = [
                await self._producer.send(topic, value, partition=partition)
                for partition, part in values.items()
                for value in part
            ]
            await asyncio.gather(*futures)

        try:
            self._loop.do(send())
        except ProducerFenced:
            self.fenced = True

    def send_offsets(self, member: AioMember, offsets: Mapping[int, int]) -> None:
        """See `Transactional`."""
        wanted = {AioPartition(member.topic, partition): (offset, "") for partition, offset in offsets.items()}
        self._loop.do(self._producer.send_offsets_to_transaction(wanted, member.group))

    def commit(self) -> None:
        """See `Transactional`."""
        try:
            self._loop.do(self._producer.commit_transaction())
        except ProducerFenced:
            self.fenced = True

    def abort(self) -> None:
        """See `Transactional`."""
        self._loop.do(self._producer.abort_transaction())

    def close(self) -> None:
        """See `Transactional`."""
        self._loop.do(self._producer.stop())
        self._loop.close()


class Reader(Protocol):
    """Reads partitions from their beginnings."""

    def poll(self) -> Iterable[Got]:
        """The next records; empty if there are none for a moment."""

    def close(self) -> None:
        """Release its connections."""


class KafkaPythonReader:
    """kafka-python."""

    def __init__(self, servers: str, topic: str, partitions: int, isolation: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=servers, group_id=None, enable_auto_commit=False, isolation_level=isolation
        )
        assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._consumer.assign(assigned)
        self._consumer.seek_to_beginning(*assigned)

    def poll(self) -> list[Got]:
        """See `Reader`."""
        found = self._consumer.poll(timeout_ms=500)
        return [Got(each.partition, each.offset, each.value) for part in found.values() for each in part]

    def close(self) -> None:
        """See `Reader`."""
        self._consumer.close()


class ConfluentReader:
    """confluent-kafka."""

    def __init__(self, servers: str, topic: str, partitions: int, isolation: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "compat", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "isolation.level": isolation})
        self._consumer.assign([ConfluentPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])

    def poll(self) -> list[Got]:
        """See `Reader`."""
        found = self._consumer.consume(500, timeout=0.5)
        assert all(message.error() is None for message in found), [message.error() for message in found]
        return [Got(each.partition(), each.offset(), each.value()) for each in found]

    def close(self) -> None:
        """See `Reader`."""
        self._consumer.close()


class AioReader:
    """aiokafka."""

    def __init__(self, servers: str, topic: str, partitions: int, isolation: str) -> None:
        self._loop = Loop()

        async def started() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=servers, group_id=None, enable_auto_commit=False, isolation_level=isolation
            )
            await consumer.start()
            assigned = [AioPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)
            return consumer

        self._consumer: AIOKafkaConsumer = self._loop.do(started())

    def poll(self) -> list[Got]:
        """See `Reader`."""
        found = self._loop.do(self._consumer.getmany(timeout_ms=500))
        return [Got(each.partition, each.offset, each.value) for part in found.values() for each in part]

    def close(self) -> None:
        """See `Reader`."""
        self._loop.do(self._consumer.stop())
        self._loop.close()


PRODUCERS: dict[str, Callable[..., Transactional]] = {
    "kafka-python": KafkaPythonTransactions,
    "confluent-kafka": ConfluentTransactions,
    "aiokafka": AioTransactions,
}
READERS: dict[str, Callable[[str, str, int, str], Reader]] = {
    "kafka-python": KafkaPythonReader,
    "confluent-kafka": ConfluentReader,
    "aiokafka": AioReader,
}


def read(client: str, servers: str, topic: str, partitions: int, isolation: str) -> dict[int, list[bytes]]:
    """The values of each partition before `END`, read by a client."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    reader = READERS[client](servers, topic, partitions, isolation)

    def complete() -> bool:
        for got in reader.poll():
            found[got.partition].append(got.value)
        return all(END in part for part in found.values())

    try:
        until(complete, each_s=0, patience_s=PATIENCE_S)
    finally:
        reader.close()
    return {partition: part[: part.index(END)] for partition, part in found.items()}
