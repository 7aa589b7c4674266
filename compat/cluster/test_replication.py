"""Replication between brokers of both kinds under Apache Kafka's controller: replicas hold equal bytes, and what is
acknowledged survives the death of a leader of either kind.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.java_clients import await_leaders
from compat.kafka import libraries
from compat.kafka.tools import tool

PARTITIONS = 3


@pytest.fixture(autouse=True)
def _java() -> None:
    libraries()


def create(cluster: ProcessCluster, topic: str) -> None:
    tool(
        "TopicCommand", "--bootstrap-server", cluster.bootstrap_servers, "--create", "--topic", topic,
        "--partitions", str(PARTITIONS), "--replication-factor", "3", "--config", "min.insync.replicas=2",
    )  # fmt: skip


def produce(cluster: ProcessCluster, topic: str, records: int) -> None:
    """Produce with acks=all; fails if a record is not acknowledged."""
    await_leaders(cluster, topic)
    out = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(records), "--record-size", "200",
        "--throughput", "-1", "--bootstrap-server", cluster.bootstrap_servers, "--command-property", "acks=all",
    )  # fmt: skip
    assert f"{records} records sent" in out


def await_equal_replicas(cluster: ProcessCluster, topic: str, records: int) -> None:
    """Wait until all brokers are in every ISR and hold the same bytes, and count the records."""
    cluster.await_isrs(topic, *cluster.brokers)
    assert cluster.replicas_become_equal(topic, range(PARTITIONS))
    consumed = tool(
        "ConsumerPerformance", "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic,
        "--num-records", str(records), "--group", f"readers-of-{records}", "--timeout", "30000",
    )  # fmt: skip
    assert f", {records}, " in consumed


@pytest.mark.parametrize(
    ("brokers", "topic"),
    [((KBROKER, KBROKER, KBROKER), "kbrokers"), ((KBROKER, KAFKA, KBROKER), "mixed")],
)
def test_r1_replicas_of_both_kinds_survive_the_death_of_each_leader(
    tmp_path: Path, brokers: tuple[str, ...], topic: str
) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=brokers) as cluster:
        cluster.start()
        create(cluster, topic)
        sent = 5_000
        produce(cluster, topic, sent)
        await_equal_replicas(cluster, topic, sent)
        for one, node in cluster.brokers.items():
            node.kill()
            produce(cluster, topic, 3_000)
            sent += 3_000
            node.start()
            cluster.await_brokers(one)
            await_equal_replicas(cluster, topic, sent)
