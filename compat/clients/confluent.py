"""confluent-kafka (librdkafka 2.x) as a `Client`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from compat.clients.samples import Sample, until_complete

name = "confluent-kafka"
null_headers = True


def produce(
    servers: str, topic: str, partition: int, records: Sequence[Sample], codec: str, *, idempotent: bool, **more: Any
) -> None:
    """See `Client`; accepts further settings of librdkafka."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.codec": codec,
            "enable.idempotence": idempotent,
            "acks": "all",
            "linger.ms": 5,
            **more,
        }
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition,
            on_delivery=delivered,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
    assert producer.flush(30) == 0
    assert offsets == list(range(offsets[0], offsets[0] + len(records)))


def consumer(servers: str, **more: Any) -> Consumer:
    """A consumer that assigns and never commits; librdkafka needs a group id anyway."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "compat",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            **more,
        }
    )


def consume(servers: str, topic: str, counts: dict[int, int]) -> dict[int, list[Sample]]:
    """See `Client`."""
    reader = consumer(servers)
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in counts])

    def poll(found: dict[int, list[Sample]]) -> None:
        for message in reader.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            records = found[message.partition()]
            assert message.offset() == len(records)
            headers = tuple((key, value) for key, value in message.headers() or [])
            records.append(Sample(message.key(), message.value(), message.timestamp()[1], headers))

    found = until_complete(counts, poll)
    reader.close()
    return found
