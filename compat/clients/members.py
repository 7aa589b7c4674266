"""Members of consumer groups of every client, with one interface."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka import ConsumerRebalanceListener as AioListener
from aiokafka import TopicPartition as AioPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import ConsumerRebalanceListener as PythonListener
from kafka import KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

POLL_MS = 100
# The shortest session that a broker allows: a test that waits for its end waits this long.
SESSION_MS = 6_000
LATEST_S = 30.0


@dataclass(frozen=True)
class Got:
    """One record as a member received it."""

    partition: int
    offset: int
    value: bytes


class Member(Protocol):
    """The interface of a member for tests; offsets belong to the one topic that it subscribes to."""

    changes: list[tuple[str, frozenset[int]]]  # ("assigned" or "revoked", partitions), in the order of the callbacks

    def poll(self) -> list[Got]:
        """The records that arrived within POLL_MS."""

    def assignment(self) -> set[int]:
        """The partitions it owns."""

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commit (offset, metadata) by partition and wait for the answer."""

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """The committed (offset, metadata) of those partitions that have one.

        confluent-kafka appends a NUL to its metadata, and reads past the end of metadata without one. So other clients
        remove it, and confluent-kafka is asked only about its own commits.
        """

    def seek(self, partition: int, offset: int) -> None:
        """Continue at that offset."""

    def close(self) -> None:
        """Leave the group, unless the member is static."""


class KafkaPythonMember:
    """kafka-python."""

    def __init__(
        self,
        servers: str,
        group: str,
        topic: str,
        *,
        instance: str | None = None,
        cooperative: bool = False,
        **more: Any,
    ) -> None:
        self.topic = topic
        self.changes: list[tuple[str, frozenset[int]]] = []
        self.consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[CooperativeStickyAssignor if cooperative else RangePartitionAssignor],
            **{
                "enable_auto_commit": False,
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": 100,
                "fetch_max_wait_ms": 100,
                **more,
            },
        )
        changes = self.changes

        class Listener(PythonListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                changes.append(("revoked", frozenset(each.partition for each in revoked)))

            def on_partitions_assigned(self, assigned: Any) -> None:
                changes.append(("assigned", frozenset(each.partition for each in assigned)))

        # kafka-python 3.0.12 may hang forever if it joins before it knows the topic, on Apache Kafka as well.
        while self.consumer.partitions_for_topic(topic) is None:
            pass
        self.consumer.subscribe([topic], listener=Listener())

    def poll(self) -> list[Got]:
        """See `Member`."""
        # A poll that ends while the client joins may make kafka-python 3.0.12 hang, on Apache Kafka as well.
        found = self.consumer.poll(timeout_ms=10 * POLL_MS)
        return [Got(record.partition, record.offset, record.value) for part in found.values() for record in part]

    def assignment(self) -> set[int]:
        """See `Member`."""
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """See `Member`."""
        self.consumer.commit(
            {
                TopicPartition(self.topic, partition): OffsetAndMetadata(offset, metadata, -1)
                for partition, (offset, metadata) in offsets.items()
            }
        )

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """See `Member`."""
        found = {}
        for partition in partitions:
            reported = self.consumer.committed(TopicPartition(self.topic, partition), metadata=True)
            if reported is not None:
                found[partition] = (reported.offset, reported.metadata.rstrip("\0"))
        return found

    def seek(self, partition: int, offset: int) -> None:
        """See `Member`."""
        self.consumer.seek(TopicPartition(self.topic, partition), offset)

    def close(self) -> None:
        """See `Member`."""
        self.consumer.close()


class ConfluentMember:
    """confluent-kafka."""

    def __init__(
        self,
        servers: str,
        group: str,
        topic: str,
        *,
        instance: str | None = None,
        cooperative: bool = False,
        **more: Any,
    ) -> None:
        self.topic = topic
        self.changes: list[tuple[str, frozenset[int]]] = []
        settings = {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        if "group.protocol" not in settings:  # in the new protocol the broker decides about these
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100} | settings
            settings |= {"partition.assignment.strategy": "cooperative-sticky" if cooperative else "range"}
        self.consumer = ConfluentConsumer(settings | ({"group.instance.id": instance} if instance else {}))
        self.consumer.subscribe([topic], on_assign=self._noting("assigned"), on_revoke=self._noting("revoked"))

    def _noting(self, what: str) -> Callable[[Any, Any], None]:
        return lambda _, partitions: self.changes.append((what, frozenset(each.partition for each in partitions)))

    def poll(self) -> list[Got]:
        """See `Member`."""
        found = self.consumer.consume(500, timeout=POLL_MS / 1000)
        errors = [message.error() for message in found if message.error() is not None]
        assert all(error.retriable() for error in errors), errors
        return [Got(each.partition(), each.offset(), each.value()) for each in found if each.error() is None]

    def assignment(self) -> set[int]:
        """See `Member`."""
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """See `Member`."""
        wanted = [
            ConfluentPartition(self.topic, partition, offset, metadata)
            for partition, (offset, metadata) in offsets.items()
        ]
        reported = self.consumer.commit(offsets=wanted, asynchronous=False)
        assert all(each.error is None for each in reported), reported

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """See `Member`."""
        reported = self.consumer.committed([ConfluentPartition(self.topic, each) for each in partitions], timeout=10)
        return {each.partition: (each.offset, each.metadata or "") for each in reported if each.offset >= 0}

    def seek(self, partition: int, offset: int) -> None:
        """See `Member`."""
        self.consumer.seek(ConfluentPartition(self.topic, partition, offset))

    def close(self) -> None:
        """See `Member`."""
        self.consumer.close()


class Loop:
    """An event loop in its own thread, for aiokafka."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def do(self, work: Coroutine[Any, Any, Any], *, timeout_s: float = 30) -> Any:
        """Run a coroutine to its end."""
        return self.begin(work).result(timeout_s)

    def close(self) -> None:
        """Stop the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class AioMember:
    """aiokafka, on an event loop in its own thread."""

    def __init__(self, servers: str, group: str, topic: str, *, instance: str | None = None, **more: Any) -> None:
        self.topic, self.group = topic, group
        self.changes: list[tuple[str, frozenset[int]]] = []
        self._loop = Loop()
        self.consumer: AIOKafkaConsumer = self._loop.do(self._made(servers, group, instance, more))
        # It waits for an assignment, which may need polls of other members.
        self._started = self._loop.begin(self.consumer.start())

    async def _made(self, servers: str, group: str, instance: str | None, more: Mapping[str, Any]) -> AIOKafkaConsumer:
        changes = self.changes

        class Listener(AioListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                changes.append(("revoked", frozenset(each.partition for each in revoked)))

            async def on_partitions_assigned(self, assigned: Any) -> None:
                changes.append(("assigned", frozenset(each.partition for each in assigned)))

        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[AioRange],
            **{
                "enable_auto_commit": False,
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": 100,
                "fetch_max_wait_ms": 100,
                **more,
            },
        )
        consumer.subscribe([self.topic], listener=Listener())
        return consumer

    def poll(self) -> list[Got]:
        """See `Member`."""
        try:
            self._started.result(POLL_MS / 1000)
        except concurrent.futures.TimeoutError:
            return []
        found = self._loop.do(self.consumer.getmany(timeout_ms=POLL_MS))
        return [Got(record.partition, record.offset, record.value) for part in found.values() for record in part]

    def assignment(self) -> set[int]:
        """See `Member`."""
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """See `Member`."""
        self._loop.do(
            self.consumer.commit({AioPartition(self.topic, each): reported for each, reported in offsets.items()})
        )

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """See `Member`."""
        asked = [AioPartition(self.topic, partition) for partition in partitions]
        found = self._loop.do(self.consumer._coordinator.fetch_committed_offsets(asked))
        return {
            each.partition: (reported.offset, reported.metadata.rstrip("\0"))
            for each, reported in found.items()
            if reported.offset >= 0
        }

    def seek(self, partition: int, offset: int) -> None:
        """See `Member`."""
        self._loop.loop.call_soon_threadsafe(self.consumer.seek, AioPartition(self.topic, partition), offset)

    def close(self) -> None:
        """See `Member`."""
        self._loop.do(self.consumer.stop())
        self._loop.close()


def await_assignment(member: Member, partitions: set[int]) -> None:
    """Poll until the member owns exactly these."""
    deadline = time.monotonic() + LATEST_S
    while member.assignment() != partitions:
        assert time.monotonic() < deadline, f"it owns {member.assignment()} and not {partitions}"
        member.poll()


CLIENTS: dict[str, Callable[..., Member]] = {
    "kafka-python": KafkaPythonMember,
    "confluent-kafka": ConfluentMember,
    "aiokafka": AioMember,
}
