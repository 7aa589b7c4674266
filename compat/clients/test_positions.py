"""Consumers with assigned partitions find their positions: seek, times, beginnings and ends, in every client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from compat.brokers import Broker
from compat.clients import kafka_python
from compat.clients import kcat as kcat_output
from compat.clients.confluent import consumer as confluent_consumer
from compat.clients.conftest import NewTopic
from compat.clients.samples import START_MS, Sample

Kcat = Callable[..., bytes]
COUNT = 50


@pytest.fixture(scope="module")
def dated(broker: Broker, new_topic: NewTopic) -> str:
    """Partition 0 holds fifty records, one a second; partition 1 is empty."""
    topic = new_topic("dated", partitions=2)
    records = [Sample(b"%d" % number, b"value %d" % number, START_MS + 1000 * number) for number in range(COUNT)]
    for part in (records[:20], records[20:21], records[21:]):
        kafka_python.produce(broker.bootstrap_servers, topic, 0, part, "lz4", idempotent=True)
    return topic


def test_kafka_python_seeks_and_asks_for_times_and_ends(broker: Broker, dated: str) -> None:
    with closing(
        KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=None, enable_auto_commit=False)
    ) as consumer:
        full, empty = TopicPartition(dated, 0), TopicPartition(dated, 1)
        consumer.assign([full, empty])
        assert consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
        assert consumer.end_offsets([full, empty]) == {full: COUNT, empty: 0}
        found = consumer.offsets_for_times({full: START_MS + 30_500, empty: START_MS})
        assert (found[full].offset, found[full].timestamp) == (31, START_MS + 31_000)
        assert found[empty] is None
        assert consumer.offsets_for_times({full: START_MS + 10**9})[full] is None
        consumer.seek(empty, 0)
        for offset in (0, 19, 20, 21, 49):
            consumer.seek(full, offset)
            first = next(consumer)
            assert (first.offset, first.value) == (offset, b"value %d" % offset)
        consumer.seek_to_end(full)
        assert consumer.position(full) == COUNT
        assert consumer.partitions_for_topic(dated) == {0, 1}


def test_confluent_seeks_and_asks_for_times_and_ends(broker: Broker, dated: str) -> None:
    consumer = confluent_consumer(broker.bootstrap_servers, **{"enable.partition.eof": True})
    assert consumer.get_watermark_offsets(ConfluentPartition(dated, 0), timeout=10) == (0, COUNT)
    assert consumer.get_watermark_offsets(ConfluentPartition(dated, 1), timeout=10) == (0, 0)
    asked = [ConfluentPartition(dated, 0, START_MS + 30_500), ConfluentPartition(dated, 1, START_MS)]
    found = consumer.offsets_for_times(asked, timeout=10)
    assert [each.offset for each in found] == [31, OFFSET_END]
    for offset in (OFFSET_BEGINNING, 20, 49):
        consumer.assign([ConfluentPartition(dated, 0, offset)])
        message = consumer.poll(10)
        assert message.error() is None
        assert message.offset() == max(offset, 0)
    consumer.seek(ConfluentPartition(dated, 0, 7))
    message = consumer.poll(10)
    assert (message.offset(), message.value()) == (7, b"value 7")
    consumer.assign([ConfluentPartition(dated, 0, OFFSET_END)])
    message = consumer.poll(10)
    assert message.error().code() == KafkaError._PARTITION_EOF
    assert message.offset() == COUNT
    consumer.close()


def test_aiokafka_seeks_and_asks_for_times_and_ends(broker: Broker, dated: str) -> None:
    full, empty = AioPartition(dated, 0), AioPartition(dated, 1)

    async def scenario() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([full, empty])
            assert await consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
            assert await consumer.end_offsets([full, empty]) == {full: COUNT, empty: 0}
            found = await consumer.offsets_for_times({full: START_MS + 30_500, empty: START_MS})
            assert (found[full].offset, found[full].timestamp) == (31, START_MS + 31_000)
            assert found[empty] is None
            consumer.seek(empty, 0)
            for offset in (0, 19, 20, 21, 49):
                consumer.seek(full, offset)
                first = await asyncio.wait_for(consumer.getone(full), 10)
                assert (first.offset, first.value) == (offset, b"value %d" % offset)
            await consumer.seek_to_end(full)
            assert await consumer.position(full) == COUNT
        finally:
            await consumer.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("offset", "first"),
    [("beginning", 0), ("0", 0), ("20", 20), ("49", 49), ("-3", 47), (f"s@{START_MS + 30_500}", 31)],
)
def test_kcat_begins_at(kcat: Kcat, dated: str, offset: str, first: int) -> None:
    printed = kcat("-C", "-q", "-t", dated, "-p", "0", "-o", offset, "-e", "-f", kcat_output.FORMAT)
    records = kcat_output.parse(printed)[0]
    assert [record.value for record in records] == [b"value %d" % number for number in range(first, COUNT)]


def test_kcat_reads_between_two_times(kcat: Kcat, dated: str) -> None:
    printed = kcat(
        "-C", "-q", "-t", dated, "-p", "0", "-o", f"s@{START_MS + 10_000}", "-o", f"e@{START_MS + 20_000}", "-f", "%o\n"
    )  # fmt: skip
    assert printed.split() == [b"%d" % number for number in range(10, 20)]


def test_kcat_queries_offsets_by_time(kcat: Kcat, dated: str) -> None:
    asked = [(0, START_MS + 30_500, 31), (0, START_MS, 0), (0, -1, COUNT), (0, -2, 0), (1, -1, 0)]
    for partition, time, offset in asked:
        printed = kcat("-Q", "-t", f"{dated}:{partition}:{time}").decode()
        assert re.search(rf"{dated} \[{partition}\] offset {offset}\b", printed), printed
    printed = kcat("-Q", "-t", f"{dated}:0:{START_MS + 10**9}").decode()
    assert re.search(rf"{dated} \[0\] offset (-1|{COUNT})\b", printed), printed


def test_kcat_lists_brokers_topics_and_partitions(kcat: Kcat, broker: Broker, dated: str) -> None:
    listed = json.loads(kcat("-L", "-J"))
    assert [each["name"] for each in listed["brokers"]] == [broker.bootstrap_servers]
    node = listed["brokers"][0]["id"]
    assert listed["controllerid"] == node
    topic = next(each for each in listed["topics"] if each["topic"] == dated)
    only = {"leader": node, "replicas": [{"id": node}], "isrs": [{"id": node}]}
    assert topic["partitions"] == [{"partition": 0, **only}, {"partition": 1, **only}]
    text = kcat("-L", "-t", dated).decode()
    assert f'topic "{dated}" with 2 partitions' in text
