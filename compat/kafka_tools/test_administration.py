"""kafka-topics, kafka-configs, kafka-get-offsets and kafka-delete-records.

A JVM takes about a second to start, so each test checks several things with few runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from compat.brokers import Broker
from compat.clients import kafka_python
from compat.clients.conftest import NewTopic
from compat.clients.samples import START_MS, Sample
from compat.conftest import KafkaTool


def test_topics_are_created_listed_described_altered_and_deleted(
    broker: Broker, kafka_tool: KafkaTool, new_topic_name: Callable[[str], str]
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic_name("tool")
    options = [
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=1000000",
        "--config",
        "segment.bytes=1048576",
    ]
    created = kafka_tool("TopicCommand", *at, "--create", "--topic", name, *options)
    assert created.stdout == f"Created topic {name}.\n"
    again = kafka_tool("TopicCommand", *at, "--create", "--topic", name, *options, status=1)
    assert f"Topic '{name}' already exists" in again.stdout + again.stderr
    assert name in kafka_tool("TopicCommand", *at, "--list").stdout.split()
    kafka_tool("TopicCommand", *at, "--alter", "--topic", name, "--partitions", "5")
    described = kafka_tool("TopicCommand", *at, "--describe", "--topic", name).stdout
    head, *rows = described.splitlines()
    assert re.search(rf"Topic: {name}\tTopicId: \S{{22}}\tPartitionCount: 5\tReplicationFactor: 1\t", head), head
    assert {"retention.ms=1000000", "segment.bytes=1048576"} <= set(head.split("Configs: ")[1].strip().split(","))
    node = re.findall(r"Leader: (\d+)", described)[0]
    for index, row in enumerate(rows):
        assert f"Partition: {index}\tLeader: {node}\tReplicas: {node}\tIsr: {node}" in row
    assert len(rows) == 5
    kafka_tool("TopicCommand", *at, "--delete", "--topic", name)
    gone = kafka_tool("TopicCommand", *at, "--describe", "--topic", name, status=1)
    assert f"Topic '{name}' does not exist" in gone.stdout + gone.stderr


def test_settings_of_topics_and_brokers_are_described_and_altered(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic("configured")
    topic = (*at, "--entity-type", "topics", "--entity-name", name)
    altered = kafka_tool(
        "ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=7000,cleanup.policy=[delete]"
    )
    assert f"Completed updating config for topic {name}." in altered.stdout
    described = kafka_tool("ConfigCommand", *topic, "--describe").stdout
    assert re.search(
        r"^  retention.ms=7000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=7000",
        described,
        re.MULTILINE,
    )
    assert "cleanup.policy=delete" in described
    refused = kafka_tool("ConfigCommand", *topic, "--alter", "--add-config", "no.such.setting=1", status=1)
    assert "no.such.setting" in refused.stdout + refused.stderr
    kafka_tool("ConfigCommand", *topic, "--alter", "--delete-config", "retention.ms")
    everything = kafka_tool("ConfigCommand", *topic, "--describe", "--all").stdout
    assert "retention.ms=604800000" in everything
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in everything
    default = (*at, "--entity-type", "brokers", "--entity-default")
    kafka_tool("ConfigCommand", *default, "--alter", "--add-config", "message.max.bytes=1048000")
    described = kafka_tool("ConfigCommand", *default, "--describe").stdout
    assert (
        "message.max.bytes=1048000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1048000"
        in described
    )
    kafka_tool("ConfigCommand", *default, "--alter", "--delete-config", "message.max.bytes")


def test_offsets_are_found_and_records_deleted(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic("offsets", partitions=2)
    records = [Sample(b"k", b"v", START_MS + 1000 * number) for number in range(40)]
    kafka_python.produce(broker.bootstrap_servers, name, 0, records, "none", idempotent=False)
    request = tmp_path / "delete.json"
    request.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 15}], "version": 1}))
    deleted = kafka_tool("DeleteRecordsCommand", *at, "--offset-json-file", str(request)).stdout
    assert f"partition: {name}-0\tlow_watermark: 15" in deleted
    for time, expected in [
        ("-1", {f"{name}:0:40", f"{name}:1:0"}),
        ("-2", {f"{name}:0:15", f"{name}:1:0"}),
        ("-3", {f"{name}:0:39", f"{name}:1:"}),
        ("-4", {f"{name}:0:15", f"{name}:1:0"}),
        ("-5", {f"{name}:0:", f"{name}:1:"}),
        ("-6", {f"{name}:0:", f"{name}:1:"}),
        (str(START_MS + 20_500), {f"{name}:0:21", f"{name}:1:"}),
    ]:
        # Some releases omit partitions without an answer, others print them with an empty offset.
        found = set(kafka_tool("GetOffsetShell", *at, "--topic", name, "--time", time).stdout.split())
        reported = {each for each in expected if not each.endswith(":")}
        assert reported <= found <= expected, f"--time {time}: {found}"


def test_client_quotas_are_set_described_and_removed(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    user, client = ("--entity-type", "users", "--entity-name", "quota-user"), ("--entity-type", "clients")
    pair = (*user, *client, "--entity-name", "quota-client")
    quotas = "producer_byte_rate=1048576,controller_mutation_rate=0.5"
    kafka_tool("ConfigCommand", *at, "--alter", *pair, "--add-config", quotas)
    kafka_tool("ConfigCommand", *at, "--alter", *user, "--add-config", "request_percentage=150")
    kafka_tool("ConfigCommand", *at, "--alter", "--entity-type", "ips", "--entity-name", "192.0.2.1", "--add-config",
               "connection_creation_rate=20")  # fmt: skip
    described = kafka_tool("ConfigCommand", *at, "--describe", *pair).stdout
    head, _, values = described.strip().partition(" are ")
    assert head == "Quota configs for user-principal 'quota-user', client-id 'quota-client'"
    assert {"producer_byte_rate=1048576.0", "controller_mutation_rate=0.5"} == set(values.split(", "))
    described = kafka_tool("ConfigCommand", *at, "--describe", "--entity-type", "users").stdout
    assert "Quota configs for user-principal 'quota-user' are request_percentage=150.0" in described.splitlines()
    described = kafka_tool("ConfigCommand", *at, "--describe", "--entity-type", "ips").stdout
    assert "Quota configs for ip '192.0.2.1' are connection_creation_rate=20.0" in described.splitlines()
    refused = kafka_tool("ConfigCommand", *at, "--alter", *user, "--add-config", "producer_byte_rate=-1", status=1)
    assert "must be greater than 0" in refused.stdout + refused.stderr
    kafka_tool("ConfigCommand", *at, "--alter", *pair, "--delete-config", "producer_byte_rate,controller_mutation_rate")
    kafka_tool("ConfigCommand", *at, "--alter", *user, "--delete-config", "request_percentage")
    kafka_tool("ConfigCommand", *at, "--alter", "--entity-type", "ips", "--entity-name", "192.0.2.1",
               "--delete-config", "connection_creation_rate")  # fmt: skip
    assert "quota-user" not in kafka_tool("ConfigCommand", *at, "--describe", "--entity-type", "users").stdout
