"""aiokafka as a `Client`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from compat.clients.samples import Sample

name = "aiokafka"
null_headers = True


async def _produce(
    servers: str, topic: str, partition: int, records: Sequence[Sample], codec: str, *, idempotent: bool
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        acks="all",
        linger_ms=5,
    )
    await producer.start()
    try:
        pending = [
            await producer.send(
                topic,
                record.value,
                record.key,
                partition=partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        offsets = [(await future).offset for future in pending]
    finally:
        await producer.stop()
    assert offsets == list(range(offsets[0], offsets[0] + len(records)))


def produce(
    servers: str, topic: str, partition: int, records: Sequence[Sample], codec: str, *, idempotent: bool
) -> None:
    """See `Client`."""
    asyncio.run(_produce(servers, topic, partition, records, codec, idempotent=idempotent))


async def _consume(servers: str, topic: str, counts: dict[int, int]) -> dict[int, list[Sample]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)
    await consumer.start()
    found: dict[int, list[Sample]] = {partition: [] for partition in counts}
    try:
        assigned = [TopicPartition(topic, partition) for partition in counts]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        while any(len(found[partition]) < count for partition, count in counts.items()):
            got = await asyncio.wait_for(consumer.getmany(timeout_ms=10_000), 15)
            assert got, "no more records arrive"
            for key, records in got.items():
                for record in records:
                    assert record.offset == len(found[key.partition])
                    headers = tuple((str(header), value) for header, value in record.headers)
                    found[key.partition].append(Sample(record.key, record.value, record.timestamp, headers))
    finally:
        await consumer.stop()
    return found


def consume(servers: str, topic: str, counts: dict[int, int]) -> dict[int, list[Sample]]:
    """See `Client`."""
    return asyncio.run(_consume(servers, topic, counts))
