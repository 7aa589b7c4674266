"""Idempotent clients with five batches in flight lose the replies with the broker: no batch is stored twice.

A proxy that the broker advertises holds back the replies to Produce. When the broker has stored the five batches, the
last of them in a new segment, it is killed or stopped. The clients then send all five again to the restarted broker.
(The Python clients kafka-python and aiokafka have one batch in flight.)

With KBROKER_COMPAT_BROKER=kafka the tests fail: Apache Kafka restores only the last batch from a snapshot.
"""

from __future__ import annotations

import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from compat.brokers import free_port
from compat.conftest import KafkaTool
from compat.frame_proxy import Frame, FrameProxy
from compat.kafka_tools.test_files import StartBroker, create

PRODUCE = 0
BATCHES, VALUE_BYTES = 5, 250_000
SEGMENT_BYTES = 1 << 20  # four of the batches
WAIT_S = 60.0


class KeepsReplies(FrameProxy):
    """Holds back replies to Produce while it `keeps` them."""

    keeps = True

    def on_request(self, frame: Frame) -> bool:
        is_produce: bool = struct.unpack_from(">h", frame)[0] == PRODUCE
        return is_produce

    def on_response(self, remembered: bool, frame: Frame) -> bool:  # noqa: ARG002
        return not (remembered and self.keeps)


def send_by_librdkafka(servers: str, topic: str) -> None:
    settings = {"enable.idempotence": True, "batch.num.messages": 1, "linger.ms": 0, "retry.backoff.ms": 20}
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 1_000_000, **settings})
    errors: list[object] = []
    for number in range(BATCHES):
        producer.produce(
            topic,
            b"%d" % number * VALUE_BYTES,
            partition=0,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    assert errors == []


def stored(servers: str, topic: str) -> int:
    """The number of records in the partition."""
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=None)) as consumer:
        place = TopicPartition(topic, 0)
        return int(consumer.end_offsets([place])[place])


def send_by_java(tool: KafkaTool, servers: str, topic: str) -> None:
    size = ("--num-records", str(BATCHES), "--record-size", str(VALUE_BYTES), "--throughput", "-1")
    settings = ("--producer-props", f"bootstrap.servers={servers}", "batch.size=1", "linger.ms=0")
    done = tool("ProducerPerformance", "--topic", topic, *size, *settings)
    assert "OutOfOrderSequence" not in done.stdout + done.stderr


@pytest.mark.parametrize("ending", ["killed", "stopped"])
@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_r6_k4_five_batches_resent_after_a_restart_are_stored_once(
    start_broker: StartBroker, request: pytest.FixtureRequest, client: str, ending: str
) -> None:
    send = send_by_librdkafka
    if client == "java":
        send = partial(send_by_java, request.getfixturevalue("kafka_tool"))
    port = free_port()
    servers = f"127.0.0.1:{port}"
    broker = start_broker(f"advertised.listeners=PLAINTEXT://{servers}")
    with closing(KeepsReplies(port, ("127.0.0.1", broker.port))) as proxy, ThreadPoolExecutor(1) as pool:
        create(broker, "retried", segment_bytes=str(SEGMENT_BYTES))
        sending = pool.submit(send, servers, "retried")
        deadline = time.monotonic() + WAIT_S
        while stored(servers, "retried") < BATCHES and time.monotonic() < deadline:
            time.sleep(0.1)
        broker.kill() if ending == "killed" else broker.stop()
        proxy.keeps = False
        assert broker.log_directory is not None
        assert len(list((broker.log_directory / "retried-0").glob("*.log"))) == 2, "the fifth batch is in a new segment"
        broker.start()
        sending.result(WAIT_S)
        assert stored(servers, "retried") == BATCHES
