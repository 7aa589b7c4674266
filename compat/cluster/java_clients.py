"""Topics, producers and consumers of Apache Kafka's command line tools."""

from __future__ import annotations

from compat.cluster import ProcessCluster
from compat.kafka.tools import tool

RECORDS = 500


def create(cluster: ProcessCluster, topic: str, *how: str) -> None:
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    tool("TopicCommand", *servers, "--create", "--topic", topic, "--config", "min.insync.replicas=1", *how)


def await_leaders(cluster: ProcessCluster, topic: str) -> None:
    """Wait until the leader of each partition knows that it leads, since it answers a ListOffsets only then.

    Kafka's idempotent producer can get stuck without this: it sends several batches at once, and the leader refuses the
    first ones and accepts a later one, because it has no sequence number of this producer to compare. The first batch
    is out of order then, whenever it is repeated.
    """
    tool("GetOffsetShell", "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic)


def produce_and_consume(cluster: ProcessCluster, topic: str, group: str, *, total: int = RECORDS) -> None:
    """Produce RECORDS records, and consume the `total` that the topic then has."""
    servers = cluster.bootstrap_servers
    await_leaders(cluster, topic)
    tool(
        "ProducerPerformance", "--topic", topic, "--num-records", str(RECORDS), "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", servers, "--command-property", "acks=all",
    )  # fmt: skip
    consumed = tool(
        "ConsumerPerformance", "--bootstrap-server", servers, "--topic", topic, "--num-records", str(total),
        "--group", group, "--timeout", "30000",
    )  # fmt: skip
    assert f", {total}, " in consumed
