"""kafka-leader-election, kafka-log-dirs, kafka-reassign-partitions, kafka-features, kafka-metadata-quorum, kafka-acls,
kafka-cluster, kafka-client-metrics, kafka-broker-api-versions, and kafka-configs for resources other than topics.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.conftest import NewTopic
from compat.conftest import KafkaTool
from compat.oracle.raw import connected
from compat.oracle.schema import api_names


def test_electing_a_current_leader_succeeds(broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic("elected")
    for kind in ("preferred", "unclean"):
        one = kafka_tool("LeaderElectionCommand", *at, "--election-type", kind, "--topic", name, "--partition", "0")
        assert one.stdout == f"Valid replica already elected for partitions {name}-0\n"
    kafka_tool("LeaderElectionCommand", *at, "--election-type", "preferred", "--all-topic-partitions")
    absent = ("--election-type", "preferred", "--topic", "absent", "--partition", "0")
    failed = kafka_tool("LeaderElectionCommand", *at, *absent, status=1)
    assert "absent" in failed.stdout + failed.stderr


def test_log_directories_are_described(broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic("stored", partitions=2)
    filling.fill(broker.bootstrap_servers, name, {1: [b"x" * 100] * 20})
    printed = kafka_tool("LogDirsCommand", *at, "--describe", "--topic-list", name).stdout
    (node,) = json.loads(printed.splitlines()[-1])["brokers"]
    (directory,) = node["logDirs"]
    assert directory["error"] is None
    sizes = {partition["partition"]: partition["size"] for partition in directory["partitions"]}
    assert sizes.keys() == {f"{name}-0", f"{name}-1"}
    assert sizes[f"{name}-0"] == 0
    assert sizes[f"{name}-1"] > 2000
    if broker.log_directory is not None:
        assert Path(directory["logDir"]) == broker.log_directory
        files = (broker.log_directory / f"{name}-1").glob("*.log")
        assert sizes[f"{name}-1"] == sum(file.stat().st_size for file in files)


def test_partitions_cannot_move_to_an_unknown_broker(
    broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    name = new_topic("moved")

    def plan(node: int) -> tuple[str, str]:
        path = tmp_path / f"{node}.json"
        wanted = {"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [node]}]}
        path.write_text(json.dumps(wanted))
        return "--reassignment-json-file", str(path)

    command = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    refused = kafka_tool(command, *at, *plan(7), "--execute", status=1)
    assert "Unknown broker id 7" in refused.stdout
    accepted = kafka_tool(command, *at, *plan(1), "--execute").stdout
    assert f"Successfully started partition reassignment for {name}-0" in accepted
    verified = kafka_tool(command, *at, *plan(1), "--verify").stdout
    assert f"Reassignment of partition {name}-0 is completed." in verified
    assert "No partition reassignments found." in kafka_tool(command, *at, "--list").stdout
    cancelled = kafka_tool(command, *at, *plan(1), "--cancel").stdout
    assert "None of the specified partition reassignments are active." in cancelled


def test_features_are_described_and_limited(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    described = kafka_tool("FeatureCommand", *at, "describe").stdout
    assert re.search(r"^Feature: metadata.version\s.*FinalizedVersionLevel: 3.9-IV0", described, re.MULTILINE)
    lower = kafka_tool("FeatureCommand", *at, "downgrade", "--feature", "metadata.version=20", "--dry-run")
    assert "metadata.version can be downgraded to 20." in lower.stdout
    lost = kafka_tool("FeatureCommand", *at, "downgrade", "--feature", "metadata.version=7", "--dry-run", status=1)
    assert "it might delete metadata information" in lost.stdout
    unknown = kafka_tool("FeatureCommand", *at, "upgrade", "--feature", "metadata.version=99", "--dry-run", status=1)
    assert "only supports versions 7-" in unknown.stdout


def test_the_quorum_and_the_cluster_are_described(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    status = kafka_tool("MetadataQuorumCommand", *at, "describe", "--status").stdout
    assert re.search(r"^LeaderId:\s+1$", status, re.MULTILINE)
    assert re.search(r'^CurrentVoters:\s+\[\{"id": 1', status, re.MULTILINE)
    replication = kafka_tool("MetadataQuorumCommand", *at, "describe", "--replication").stdout
    assert replication.splitlines()[1].split()[-1] == "Leader"
    cluster_id = re.search(r"^ClusterId:\s+(\S+)$", status, re.MULTILINE)
    assert cluster_id is not None
    assert kafka_tool("ClusterTool", "cluster-id", *at).stdout == f"Cluster ID: {cluster_id[1]}\n"
    endpoints = kafka_tool("ClusterTool", "list-endpoints", *at).stdout
    assert broker.bootstrap_servers.rpartition(":")[2] in endpoints
    gone = kafka_tool("ClusterTool", "unregister", "--id", "7", *at, status=1)
    assert "Broker ID 7 is not currently registered" in gone.stderr


def test_access_control_is_disabled(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    refused = kafka_tool("AclCommand", *at, "--list", status=1)
    assert "No Authorizer is configured" in refused.stdout
    added = ("--add", "--allow-principal", "User:x", "--operation", "Read", "--topic", "t")
    assert "No Authorizer is configured" in kafka_tool("AclCommand", *at, *added, status=1).stdout


def test_the_versions_of_every_api_are_listed(broker: Broker, kafka_tool: KafkaTool) -> None:
    with connected(broker.bootstrap_servers) as connection:
        advertised = {each["ApiKey"]: each for each in connection.call("ApiVersions", 0, {})["ApiKeys"]}
    reported = kafka_tool("BrokerApiVersionsCommand", "--bootstrap-server", broker.bootstrap_servers).stdout
    printed = re.findall(r"^\t(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: \d+\]", reported, re.MULTILINE)
    names = api_names()
    for name, key, low, high in printed:
        row = advertised[int(key)]
        assert (name, int(low), int(high or low)) == (names[int(key)], row["MinVersion"], row["MaxVersion"])
    assert {int(key) for _, key, _, _ in printed} == advertised.keys()


@pytest.mark.parametrize("scope", ["--entity-name 1", "--entity-default"])
def test_a_brokers_settings_are_changed_described_and_deleted(
    broker: Broker, kafka_tool: KafkaTool, scope: str
) -> None:
    brokers = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "brokers", *scope.split())
    kafka_tool("ConfigCommand", *brokers, "--alter", "--add-config", "log.retention.bytes=123456,max.connections=777")
    described = kafka_tool("ConfigCommand", *brokers, "--describe").stdout
    assert "log.retention.bytes=123456 sensitive=false" in described
    assert "max.connections=777 sensitive=false" in described
    refused = kafka_tool("ConfigCommand", *brokers, "--alter", "--add-config", "node.id=3", status=1)
    assert "Cannot update these configs dynamically: [node.id]" in refused.stdout + refused.stderr
    kafka_tool("ConfigCommand", *brokers, "--alter", "--delete-config", "log.retention.bytes,max.connections")
    assert "777" not in kafka_tool("ConfigCommand", *brokers, "--describe").stdout


def test_loggers_are_described_and_changed(broker: Broker, kafka_tool: KafkaTool) -> None:
    loggers = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "broker-loggers", "--entity-name", "1")
    before = re.search(r"^  root=(\w+) ", kafka_tool("ConfigCommand", *loggers, "--describe").stdout, re.MULTILINE)
    assert before is not None
    kafka_tool("ConfigCommand", *loggers, "--alter", "--add-config", "root=ERROR")
    assert "  root=ERROR sensitive=false" in kafka_tool("ConfigCommand", *loggers, "--describe").stdout
    refused = kafka_tool("ConfigCommand", *loggers, "--alter", "--add-config", "no.such.logger=ERROR", status=1)
    assert "no.such.logger" in refused.stdout + refused.stderr
    kafka_tool("ConfigCommand", *loggers, "--alter", "--add-config", f"root={before[1]}")


def test_metric_subscriptions_are_stored(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    named = (*at, "--entity-type", "client-metrics", "--entity-name", "watched")
    kafka_tool("ConfigCommand", *named, "--alter", "--add-config", "interval.ms=5000,match=[client_id=a.*]")
    assert "watched" in kafka_tool("ClientMetricsCommand", *at, "--list").stdout.split()
    described = kafka_tool("ClientMetricsCommand", *at, "--describe", "--name", "watched").stdout
    assert "  interval.ms=5000" in described
    kafka_tool("ClientMetricsCommand", *at, "--delete", "--name", "watched")
    assert "watched" not in kafka_tool("ClientMetricsCommand", *at, "--list").stdout.split()


def test_group_settings_are_stored(broker: Broker, kafka_tool: KafkaTool) -> None:
    groups = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "groups", "--entity-name", "configured")
    every = kafka_tool("ConfigCommand", *groups, "--describe", "--all").stdout
    assert "consumer.session.timeout.ms=45000 sensitive=false" in every
    kafka_tool("ConfigCommand", *groups, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    described = kafka_tool("ConfigCommand", *groups, "--describe").stdout
    assert "consumer.session.timeout.ms=50000 sensitive=false" in described
    short = ("--alter", "--add-config", "consumer.session.timeout.ms=1")
    refused = kafka_tool("ConfigCommand", *groups, *short, status=1)
    assert "group.consumer.min.session.timeout.ms" in refused.stdout + refused.stderr
    kafka_tool("ConfigCommand", *groups, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "50000" not in kafka_tool("ConfigCommand", *groups, "--describe").stdout
