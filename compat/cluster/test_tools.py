"""Kafka's tools on a cluster of brokers of both kinds, with a broker of either kind as their bootstrap server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.nodes import QUICK_SESSIONS
from compat.kafka import libraries
from compat.kafka.jvm import java_command, java_environment
from compat.kafka.tools import tool
from compat.kafka_tools.image_tools import image_tool
from compat.waiting import until

KINDS = {1: KBROKER, 2: KAFKA, 3: KBROKER}
PATIENCE_S = 40.0


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    libraries()
    # Leaders move only when a test moves them.
    settings = {**QUICK_SESSIONS, "auto.leader.rebalance.enable": "false"}
    with ProcessCluster(
        tmp_path_factory.mktemp("tools"), controllers=[KAFKA], brokers=list(KINDS.values()), settings=settings
    ) as cluster:
        cluster.start()
        yield cluster


class Tools:
    """Runs tools with one broker as the bootstrap server."""

    def __init__(self, cluster: ProcessCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker
        self.servers = ("--bootstrap-server", cluster.brokers[broker].address)

    def __call__(self, name: str, *arguments: str) -> str:
        """The output of a tool; fails if the tool does."""
        return tool(name, *self.servers, *arguments)

    def topic(self, name: str, *replicas: str) -> str:
        """Create a topic with these replicas of its partitions, and wait until both kinds of brokers know it."""
        topic = f"{name}-{self.broker}"
        self("TopicCommand", "--create", "--topic", topic, "--replica-assignment", ",".join(replicas))
        for asked in KINDS:
            for index in range(len(replicas)):
                until(lambda: self.cluster.leader(topic, index, ask=asked) >= 0, patience_s=PATIENCE_S)  # noqa: B023
        return topic

    def fill(self, topic: str, records: int = 1_000) -> None:
        """Produce records with acks=all."""
        size = ("--num-records", str(records), "--record-size", "100", "--throughput", "-1")
        out = self("ProducerPerformance", "--topic", topic, *size, "--command-property", "acks=all")
        assert f"{records} records sent" in out


@pytest.fixture(name="tools", params=[1, 2], ids=[KBROKER, KAFKA])
def _tools(cluster: ProcessCluster, request: pytest.FixtureRequest) -> Iterator[Tools]:
    yield Tools(cluster, request.param)
    for node in cluster.brokers.values():
        if not node.is_running:
            node.start()
    cluster.await_brokers(*KINDS)


def test_kafka_topics_creates_describes_grows_and_deletes(tools: Tools) -> None:
    topic = tools.topic("managed", "1:2", "2:3")
    described = tools("TopicCommand", "--describe", "--topic", topic)
    assert "Partition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2" in described
    assert "Partition: 1\tLeader: 2\tReplicas: 2,3\tIsr: 2,3" in described
    tools("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    until(lambda: "PartitionCount: 3" in tools("TopicCommand", "--describe", "--topic", topic), patience_s=PATIENCE_S)
    assert topic in tools("TopicCommand", "--list").split()
    assert tools("TopicCommand", "--describe", "--unavailable-partitions", "--topic", topic) == ""
    tools("TopicCommand", "--delete", "--topic", topic)
    until(lambda: topic not in tools("TopicCommand", "--list").split(), patience_s=PATIENCE_S)
    for node in tools.cluster.brokers.values():
        until(lambda: not (node.data / f"{topic}-0").exists(), patience_s=PATIENCE_S)  # noqa: B023


def test_kafka_configs_changes_topics_and_brokers_of_either_kind(tools: Tools) -> None:
    topic = tools.topic("configured", "1:2:3")
    configs = "kafka.admin.ConfigCommand"
    named = ("--entity-type", "topics", "--entity-name", topic)
    tools(configs, *named, "--alter", "--add-config", "retention.ms=3600000")
    until(lambda: "retention.ms=3600000" in tools(configs, *named, "--describe"), patience_s=PATIENCE_S)
    for broker in KINDS:
        of_one = ("--entity-type", "brokers", "--entity-name", str(broker))
        tools(configs, *of_one, "--alter", "--add-config", "log.retention.bytes=123456")

        def is_set(of_one: tuple[str, ...] = of_one) -> bool:
            return "log.retention.bytes=123456 " in tools(configs, *of_one, "--describe")

        until(is_set, patience_s=PATIENCE_S)
        tools(configs, *of_one, "--alter", "--delete-config", "log.retention.bytes")


def test_kafka_log_dirs_shows_equal_sizes_on_all_replicas(tools: Tools) -> None:
    topic = tools.topic("stored", "1:2:3", "2:3:1")
    tools.fill(topic)

    def sizes() -> dict[int, dict[str, int]]:
        out = tools("LogDirsCommand", "--describe", "--topic-list", topic, "--broker-list", "1,2,3")
        brokers = json.loads(out.splitlines()[-1])["brokers"]
        return {
            each["broker"]: {
                part["partition"]: part["size"] for place in each["logDirs"] for part in place["partitions"]
            }
            for each in brokers
        }

    def equal() -> bool:
        found = sizes()
        return found.keys() == set(KINDS) and found[1] == found[2] == found[3] and sum(found[1].values()) > 100_000

    until(equal, patience_s=PATIENCE_S)


def test_kafka_replica_verification_finds_no_lag(tools: Tools, tmp_path: Path) -> None:
    """It fetches as a debugging consumer from each replica, and compares the checksums. It never ends by itself."""
    topic = tools.topic("verified", "1:2:3", "2:3:1", "3:1:2")
    tools.fill(topic, 20_000)  # enough batches for each partition: an empty one would be reported at offset 0
    command = java_command(
        "org.apache.kafka.tools.ReplicaVerificationTool", "--broker-list", tools.servers[1], "--topics-include", topic,
        "--time", "-2", "--report-interval-ms", "500",
    )  # fmt: skip
    printed = tmp_path / "printed.txt"
    with printed.open("wb") as file:
        verifying = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=java_environment())
    report = re.compile(rf"max lag is 0 for partition {topic}-\d at offset [1-9]\d* among 3 partitions")
    try:
        until(lambda: report.search(printed.read_text()) is not None, patience_s=PATIENCE_S)
    finally:
        verifying.kill()
        verifying.wait()
    assert "don't match" not in printed.read_text()


def test_kafka_metadata_quorum_shows_observers_of_both_kinds(tools: Tools) -> None:
    status = tools("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"^LeaderId:\s+100$", status, re.MULTILINE)

    def caught_up() -> bool:
        lines = tools("MetadataQuorumCommand", "describe", "--replication").splitlines()[1:]
        rows = {int(row[0]): (row[-1], int(row[3])) for row in map(str.split, lines) if row}
        return rows.keys() == {100, *KINDS} and all(
            kind == ("Leader" if node == 100 else "Observer") and lag <= 1 for node, (kind, lag) in rows.items()
        )

    until(caught_up, patience_s=PATIENCE_S)


def test_kafka_reassign_partitions_moves_between_the_kinds(tools: Tools, tmp_path: Path) -> None:
    topic = tools.topic("moved", "1:2", "2:3")
    tools.fill(topic)
    plan = tmp_path / "plan.json"
    targets = [{"topic": topic, "partition": 0, "replicas": [2, 3]}, {"topic": topic, "partition": 1, "replicas": [1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": targets}))
    command = "reassign.ReassignPartitionsCommand"
    run = ("--reassignment-json-file", str(plan))

    def image(*words: str) -> str:
        done = image_tool("kafka-reassign-partitions", *tools.servers, *words)
        assert done.returncode == 0, done.stdout
        return done.stdout

    is_kafka = KINDS[tools.broker] is KAFKA  # the image's tool moves partitions of a cluster of Apache Kafka too
    start = (*run, "--execute", "--throttle", "50000000")
    started = image(*start) if is_kafka else tools(command, *start)
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1\n" in started

    def is_done() -> bool:
        out = tools(command, *run, "--verify", "--preserve-throttles")
        return "is completed" in out and "in progress" not in out

    until(is_done, patience_s=PATIENCE_S)
    throttled = tools("TopicCommand", "--describe", "--topic", topic)
    assert "follower.replication.throttled.replicas=0:3,1:1" in throttled
    verified = image(*run, "--verify")
    assert verified == tools(command, *run, "--verify")
    assert "Clearing broker-level throttles on brokers 1,2,3\n" in verified
    assert "throttled" not in tools("TopicCommand", "--describe", "--topic", topic)
    described = tools("TopicCommand", "--describe", "--topic", topic)
    assert "Partition: 0\tLeader: 2\tReplicas: 2,3" in described
    assert "Partition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    consumed = tools(
        "ConsumerPerformance", "--topic", topic, "--num-records", "1000", "--group", topic, "--timeout", "30000"
    )
    assert ", 1000, " in consumed


def await_leader(cluster: ProcessCluster, topic: str, leader: int, *, ask: int) -> None:
    """Wait until a broker, which may still be starting, names this leader of partition 0."""

    def leads() -> bool:
        try:
            return cluster.leader(topic, ask=ask) == leader
        except (OSError, AssertionError):
            return False

    until(leads, patience_s=PATIENCE_S)


def test_kafka_leader_election_returns_to_the_preferred_leader(tools: Tools) -> None:
    topic = tools.topic("preferred", f"3:{tools.broker}")
    tools.cluster.brokers[3].stop()
    await_leader(tools.cluster, topic, tools.broker, ask=tools.broker)
    tools.cluster.brokers[3].start()
    tools.cluster.await_isrs(topic, tools.broker, 3, patience_s=PATIENCE_S)
    out = tools("LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in out
    await_leader(tools.cluster, topic, 3, ask=tools.broker)


def test_r9_kafka_leader_election_elects_an_unclean_leader(tools: Tools) -> None:
    """The only in-sync replica is of either kind, and dies; the other one leads when the tool demands it."""
    cluster = tools.cluster
    topic = tools.topic("unclean", f"{tools.broker}:3")
    cluster.brokers[3].stop()
    await_leader(cluster, topic, tools.broker, ask=tools.broker)
    cluster.brokers[tools.broker].kill()
    cluster.brokers[3].start()
    await_leader(cluster, topic, -1, ask=3)
    other = Tools(cluster, 3)
    out = other("LeaderElectionCommand", "--election-type", "unclean", "--topic", topic, "--partition", "0")
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in out
    await_leader(cluster, topic, 3, ask=3)
