"""kafka-python as a `Client`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat.clients.samples import Sample, until_complete

name = "kafka-python"
null_headers = False


def produce(
    servers: str, topic: str, partition: int, records: Sequence[Sample], codec: str, *, idempotent: bool
) -> None:
    """See `Client`."""
    with closing(
        KafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=5,
        )
    ) as producer:
        futures = [
            producer.send(
                topic,
                record.value,
                record.key,
                list(record.headers),
                partition=partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(timeout=30)
        offsets = [future.get(timeout=5).offset for future in futures]
        assert offsets == list(range(offsets[0], offsets[0] + len(records)))


def consume(servers: str, topic: str, counts: dict[int, int]) -> dict[int, list[Sample]]:
    """See `Client`."""
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)) as consumer:
        assigned = [TopicPartition(topic, partition) for partition in counts]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)

        def poll(found: dict[int, list[Sample]]) -> None:
            for key, records in consumer.poll(timeout_ms=500).items():
                for record in records:
                    assert record.offset == len(found[key.partition])
                    found[key.partition].append(
                        Sample(record.key, record.value, record.timestamp, tuple(map(tuple, record.headers)))
                    )

        return until_complete(counts, poll)
