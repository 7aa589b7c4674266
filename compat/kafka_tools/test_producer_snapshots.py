"""Kafka continues from the broker's producer snapshots, which have five rows per producer where its own have one."""

from __future__ import annotations

import time

from compat.kafka import KafkaNode
from compat.kafka_tools.test_files import StartBroker, another_kafka, create, give_away
from compat.oracle.batches import Batch, Item
from compat.oracle.raw import connected

__all__ = ["another_kafka"]

NONE, OUT_OF_ORDER = 0, 45
STEADY, BACKDATED = 7_000, 7_001
DAY_MS = 86_400_000


def send(servers: str, producer_id: int, sequence: int, *, age_ms: int = 0) -> tuple[int, int]:
    """(error code, base offset) of a batch of one record."""
    batch = Batch(
        [Item(b"%d" % sequence)],
        base_timestamp=time.time_ns() // 1_000_000 - age_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    topic = {"Name": "moved", "PartitionData": [{"Index": 0, "Records": batch.encode()}]}
    with connected(servers) as connection:
        answer = connection.call("Produce", 9, {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [topic]})
    found = answer["Responses"][0]["PartitionResponses"][0]
    return found["ErrorCode"], found["BaseOffset"]


def test_kafka_reads_each_producers_last_batch_from_our_snapshot(
    start_broker: StartBroker, another_kafka: KafkaNode
) -> None:
    ours = start_broker()
    try:
        create(ours, "moved")
        create(another_kafka, "moved")
        for sequence in range(5):
            assert send(ours.bootstrap_servers, STEADY, sequence) == (NONE, sequence)
        for sequence in range(3):
            age_ms = 10 * DAY_MS if sequence == 2 else 0
            assert send(ours.bootstrap_servers, BACKDATED, sequence, age_ms=age_ms) == (NONE, 5 + sequence)
        ours.stop()
        another_kafka.stop()
        assert ours.log_directory is not None
        give_away(ours.log_directory / "moved-0", another_kafka, "moved-0")
        another_kafka.start()
        servers = another_kafka.bootstrap_servers
        assert send(servers, STEADY, 4) == (NONE, 4), "the last row of a producer wins"
        assert send(servers, STEADY, 3) == (OUT_OF_ORDER, -1), "Kafka forgets the others"
        assert send(servers, STEADY, 5) == (NONE, 8)
        # Kafka drops a producer by the time of its last batch. If a younger row were left, it would refuse this one.
        assert send(servers, BACKDATED, 77) == (NONE, 9)
    finally:
        ours.stop()
