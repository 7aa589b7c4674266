"""Members of real clients that wait for their partitions, however busy the machine is. Records polled so far are
dropped.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer
from kafka import KafkaConsumer

JOIN_S = 60
LONG_POLL_MS = 2_000


def join(consumer: KafkaConsumer, topic: str, partitions: int) -> None:
    """Subscribe a consumer of kafka-python to a topic, and poll until it has this many partitions.

    Two races of kafka-python 3.0.12 leave a member without partitions forever, on Apache Kafka as well: it joined
    before it knew the topic, or a poll ended between the answers to its JoinGroup and to its SyncGroup.
    Errors: AssertionError if it does not have them after `JOIN_S` seconds.
    """
    deadline = time.monotonic() + JOIN_S
    while len(known := consumer.partitions_for_topic(topic) or set()) < partitions:
        assert time.monotonic() < deadline, f"{known} partitions of {topic} are known, not {partitions}"
        time.sleep(0.05)
    consumer.subscribe([topic])
    while len(consumer.assignment()) != partitions:
        assert time.monotonic() < deadline, f"assigned: {consumer.assignment()}"
        consumer.poll(timeout_ms=LONG_POLL_MS)


def join_confluent(consumer: Consumer, topic: str, partitions: int) -> None:
    """`join` for a consumer of librdkafka."""
    deadline = time.monotonic() + JOIN_S
    consumer.subscribe([topic])
    while len(consumer.assignment()) != partitions:
        assert time.monotonic() < deadline, f"assigned: {consumer.assignment()}"
        consumer.poll(0.1)
