"""`kbroker group`, `config` and `offset` print the same as Kafka's tools for the same broker.

Columns are compared by their words, because widths and blank lines are not part of any contract.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat.brokers import Broker
from compat.clients.joining import join, join_confluent
from compat.conftest import KafkaTool
from compat.kafka import KafkaNode

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
Words = list[list[str]]


def ours(broker: Broker, command: str, *words: str, status: int = 0) -> Words:
    """The output of our command, in words, without blank lines."""
    line = [sys.executable, "-m", "kbroker", command, "-b", broker.bootstrap_servers, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return [line.split() for line in done.stdout.splitlines() if line.strip()]


def theirs(kafka_tool: KafkaTool, tool: str, broker: Broker, *words: str) -> Words:
    done = kafka_tool(tool, "--bootstrap-server", broker.bootstrap_servers, *words)
    # The tool prints its warnings to stdout too.
    return [line.split() for line in done.stdout.splitlines() if line.strip() and not line.startswith("Warn: ")]


@pytest.fixture(scope="module")
def topic(broker: Broker, new_topic_name: Callable[[str], str]) -> str:
    """Three partitions; partition 0 has ten records."""
    name = new_topic_name("lines")
    # The records are old, and retention must not delete them during the test.
    keep = ("--config", "retention.ms=-1")
    ours(broker, "topic", "--create", "--topic", name, "--partitions", "3", *keep)
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        for number in range(10):
            producer.send(name, b"value", partition=0, timestamp_ms=1_700_000_000_000 + number).get(20)
    return name


@pytest.fixture(scope="module")
def member(broker: Broker, topic: str) -> Iterator[str]:
    """The name of a group with one member, which has read a part of the topic."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="lines", client_id="reader")
    join(consumer, topic, 3)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(4, "", -1)})
    yield "lines"
    consumer.close(autocommit=False)


@pytest.fixture(scope="module")
def empty(broker: Broker, topic: str) -> str:
    """The name of a group without members."""
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="lines-empty")) as consumer:
        consumer.commit({TopicPartition(topic, index): OffsetAndMetadata(index, "", -1) for index in range(3)})
    return "lines-empty"


@pytest.mark.parametrize(
    "flags",
    [[], ["--offsets", "--verbose"], ["--members"], ["--members", "--verbose"], ["--state", "--verbose"]],
    ids=" ".join,
)
def test_a_group_is_described_in_kafkas_columns(
    broker: Broker, kafka_tool: KafkaTool, member: str, flags: list[str]
) -> None:
    words = ["--describe", "--group", member, *flags]
    printed = ours(broker, "group", *words)
    assert len(printed) > 1
    assert sorted(printed) == sorted(theirs(kafka_tool, GROUPS, broker, *words))


def test_groups_are_listed_in_kafkas_columns(broker: Broker, kafka_tool: KafkaTool, member: str, empty: str) -> None:
    for flags in ([], ["--state", "--type"], ["--state", "empty"], ["--type", "classic"]):
        printed = ours(broker, "group", "--list", *flags)
        assert sorted(printed) == sorted(theirs(kafka_tool, GROUPS, broker, "--list", *flags))
        assert empty in [row[0] for row in printed]
    assert [member, "Stable"] in ours(broker, "group", "--list", "--state", "stable")


@pytest.mark.parametrize(
    "way",
    [
        ["--to-earliest"], ["--to-latest"], ["--to-current"], ["--to-offset", "7"], ["--shift-by", "-1"],
        ["--to-datetime", "2023-11-14T22:13:20.003"], ["--by-duration", "PT1H"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("how", [[], ["--export"]], ids=["plan", "export"])
def test_offsets_are_reset_as_by_kafkas_tool(
    broker: Broker, kafka_tool: KafkaTool, empty: str, way: list[str], how: list[str]
) -> None:
    words = ["--reset-offsets", "--dry-run", "--group", empty, "--all-topics", *way, *how]
    printed = ours(broker, "group", *words)
    assert len(printed) >= 3
    # Kafka's CSV quotes every text.
    expected = [[word.replace('"', "") for word in row] for row in theirs(kafka_tool, GROUPS, broker, *words)]
    assert sorted(printed) == sorted(expected)


@pytest.mark.parametrize("flags", [[], ["--all"]], ids=["own", "all"])
@pytest.mark.parametrize("entity", ["topic", "brokers", "defaults"])
def test_settings_are_described_in_kafkas_lines(
    broker: Broker, kafka_tool: KafkaTool, topic: str, entity: str, flags: list[str]
) -> None:
    words = {
        "topic": ["--entity-type", "topics", "--entity-name", topic],
        "brokers": ["--entity-type", "brokers", "--entity-name", "1"],
        "defaults": ["--entity-type", "brokers", "--entity-default"],
    }[entity]
    if entity == "topic":
        ours(
            broker, "config", "--alter", *words, "--add-config", "retention.ms=5000000,cleanup.policy=[compact,delete]"
        )
    command = ["--describe", *words, *flags]
    assert ours(broker, "config", *command) == theirs(kafka_tool, "ConfigCommand", broker, *command)


@pytest.mark.parametrize("spec", ["latest", "-2", "max-timestamp", "-4", "1700000000005", "1900000000000"])
def test_offsets_by_time_are_kafkas_lines(broker: Broker, kafka_tool: KafkaTool, topic: str, spec: str) -> None:
    words = ["--topic-partitions", f"{topic}:0-2", "--time", spec]
    assert ours(broker, "offset", *words) == theirs(kafka_tool, "GetOffsetShell", broker, *words)


@pytest.fixture(scope="module")
def new_protocol(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """Apache Kafka with default settings, which also coordinates groups of the new protocol."""
    assert kafka_libraries.is_dir()
    node = KafkaNode(tmp_path_factory.mktemp("new"), release="4.3")
    node.start()
    yield node
    node.discard()


def test_groups_of_the_new_protocol_are_described_in_kafkas_columns(
    new_protocol: KafkaNode, kafka_tool: KafkaTool
) -> None:
    ours(new_protocol, "topic", "--create", "--topic", "new", "--partitions", "2")
    settings = {"bootstrap.servers": new_protocol.bootstrap_servers, "group.id": "new", "group.protocol": "consumer"}
    consumer = Consumer(settings)
    try:
        join_confluent(consumer, "new", 2)
        for flags in ([], ["--members", "--verbose"], ["--state", "--verbose"]):
            words = ["--describe", "--group", "new", *flags]
            printed = ours(new_protocol, "group", *words)
            assert len(printed) > 1
            assert sorted(printed) == sorted(theirs(kafka_tool, GROUPS, new_protocol, *words))
    finally:
        consumer.close()
