"""Keyed records of a topic, written by an idempotent producer and read by a read_committed consumer, of librdkafka."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from compat.waiting import until

PATIENCE_S = 300.0
END = b"the end"
"""Key and value of the record that `read` writes to each partition, to read everything before it."""


def consumer(servers: str, group: str = "compat") -> Consumer:
    """A read_committed consumer that does not join its group."""
    more = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False, "log_level": 0}
    return Consumer({"bootstrap.servers": servers, **more})


def write(servers: str, topic: str, parts: Sequence[Sequence[bytes]], *, key: bytes | None = None) -> None:
    """Write the values of each partition with an idempotent producer."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for index, part in enumerate(parts):
        for value in part:
            producer.produce(topic, value, key, index)
    assert producer.flush(PATIENCE_S) == 0


def read(servers: str, topic: str, partitions: int) -> list[list[tuple[bytes, bytes]]]:
    """Key and value of each committed record of each partition."""
    write(servers, topic, [[END]] * partitions, key=END)
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
    reader = consumer(servers)
    reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])

    def complete() -> bool:
        for message in reader.consume(10_000, timeout=0.5):
            if message.error() is None:
                found[message.partition()].append((message.key() or b"", message.value()))
        return all(part and part[-1][1] == END for part in found)

    until(complete, each_s=0, patience_s=PATIENCE_S)
    reader.close()
    return [part[:-1] for part in found]
