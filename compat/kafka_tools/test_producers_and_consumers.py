"""The console producer and consumer, ProducerPerformance, ConsumerPerformance and VerifiableProducer."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable

import pytest

from compat.brokers import Broker
from compat.clients import filling, kafka_python
from compat.clients import kcat as kcat_output
from compat.clients.conftest import NewTopic
from compat.clients.samples import CODECS, START_MS, Sample
from compat.conftest import KafkaTool


@pytest.mark.parametrize("codec", CODECS)
def test_the_console_producer_writes_keys_headers_and_values(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic("console", partitions=1)
    lines = [f"number:{n},parity:{n % 2}\tkey-{n % 5}\tvalue {n} \u00fc" for n in range(200)]
    began = int(time.time() * 1000)
    kafka_tool(
        "ConsoleProducer",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--compression-codec",
        codec,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "parse.headers=true",
        input="\n".join(lines) + "\n",
    )
    ended = int(time.time() * 1000)
    found = kafka_python.consume(broker.bootstrap_servers, topic, {0: len(lines)})[0]
    expected = [
        (
            b"key-%d" % (number % 5),
            f"value {number} \u00fc".encode(),
            (("number", b"%d" % number), ("parity", b"%d" % (number % 2))),
        )
        for number in range(200)
    ]
    assert [(record.key, record.value, record.headers) for record in found] == expected
    assert all(began <= record.timestamp_ms <= ended for record in found)


def test_the_console_consumer_reads_a_partition_from_an_offset(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic
) -> None:
    topic = new_topic("console", partitions=2)
    records = [
        Sample(
            b"key-%d" % number if number % 3 else None,
            b"value %d" % number,
            START_MS + number,
            (("h", b"%d" % number),),
        )
        for number in range(100)
    ]
    kafka_python.produce(broker.bootstrap_servers, topic, 1, records, "zstd", idempotent=True)
    properties = [
        argument
        for name in ("timestamp", "partition", "offset", "headers", "key", "value")
        for argument in ("--formatter-property", f"print.{name}=true")
    ]
    read = kafka_tool(
        "ConsoleConsumer",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--partition",
        "1",
        "--offset",
        "37",
        "--max-messages",
        "63",
        "--timeout-ms",
        "20000",
        *properties,
    )
    expected = [
        f"CreateTime:{START_MS + number}\tPartition:1\tOffset:{number}\th:{number}\t"
        f"{f'key-{number}' if number % 3 else 'null'}\tvalue {number}"
        for number in range(37, 100)
    ]
    assert read.stdout.splitlines() == expected
    assert "Processed a total of 63 messages" in read.stderr


def test_the_console_consumer_continues_at_committed_offsets(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic, new_topic_name: Callable[[str], str]
) -> None:
    topic, group = new_topic("console", partitions=2), new_topic_name("console")
    filling.fill(broker.bootstrap_servers, topic, {part: [b"%d:%d" % (part, n) for n in range(30)] for part in (0, 1)})

    def read(count: int) -> list[str]:
        at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--group", group)
        limits = ("--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000")
        return kafka_tool("ConsoleConsumer", *at, *limits).stdout.splitlines()

    first, second = read(25), read(35)
    assert Counter(first + second) == Counter(f"{part}:{number}" for part in (0, 1) for number in range(30))
    filling.fill(broker.bootstrap_servers, topic, {1: [b"more"]})
    assert read(1) == ["more"]


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_producer_performance_writes_all_its_records(
    broker: Broker, kafka_tool: KafkaTool, kcat: Callable[..., bytes], new_topic: NewTopic, idempotent: str
) -> None:
    topic = new_topic("performance", partitions=3)
    done = kafka_tool(
        "ProducerPerformance",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--payload-monotonic",
        "--throughput",
        "-1",
        "--command-property",
        "acks=all",
        "compression.type=lz4",
        f"enable.idempotence={idempotent}",
    )
    assert re.search(r"^20000 records sent, [\d.]+ records/sec", done.stdout, re.MULTILINE), done.stdout
    printed = kcat("-C", "-q", "-t", topic, "-o", "beginning", "-e", "-f", kcat_output.FORMAT)
    partitions = kcat_output.parse(printed)
    values = {index: [int(record.value or b"-1") for record in records] for index, records in partitions.items()}
    assert sorted(value for part in values.values() for value in part) == list(range(20_000))
    for part in values.values():
        assert part == sorted(part)


def test_consumer_performance_reads_as_many_records_as_were_written(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic
) -> None:
    topic = new_topic("performance", partitions=2)
    for partition in (0, 1):
        records = [Sample(None, b"x" * 100, START_MS)] * 1000
        kafka_python.produce(broker.bootstrap_servers, topic, partition, records, "none", idempotent=False)
    done = kafka_tool(
        "ConsumerPerformance",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--num-records",
        "2000",
        "--hide-header",
    )
    fields = [field.strip() for field in done.stdout.strip().splitlines()[-1].split(",")]
    assert float(fields[2]) == pytest.approx(200_000 / (1 << 20), rel=0.01)
    assert int(fields[4]) == 2000


def test_the_verifiable_producer_reports_every_offset(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic
) -> None:
    topic = new_topic("verifiable", partitions=2)
    done = kafka_tool(
        "VerifiableProducer",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        topic,
        "--max-messages",
        "300",
        "--value-prefix",
        "7",
        "--repeating-keys",
        "5",
        "--message-create-time",
        str(START_MS),
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    summary = next(event for event in events if event["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (300, 300)
    counts = {partition: sum(event["partition"] == partition for event in sent) for partition in (0, 1)}
    found = kafka_python.consume(
        broker.bootstrap_servers, topic, {key: count for key, count in counts.items() if count}
    )
    for event in sent:
        record = found[event["partition"]][event["offset"]]
        assert record.value == event["value"].encode()
        assert record.key == event["key"].encode()
    assert {event["value"] for event in sent} == {f"7.{number}" for number in range(300)}
