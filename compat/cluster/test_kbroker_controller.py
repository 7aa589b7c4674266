"""Brokers of Apache Kafka and of kbroker, alone and together, on a kbroker controller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.java_clients import RECORDS, create, produce_and_consume
from compat.cluster.nodes import QUICK_SESSIONS
from compat.kafka import libraries
from compat.kafka.tools import tool
from compat.waiting import until

TOPIC = "orders"


@pytest.mark.parametrize("kinds", [(KAFKA, KAFKA, KBROKER), (KBROKER,) * 3], ids=["mixed", "kbroker"])
def test_r1_a_cluster_outlives_leaders_and_its_controller(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Brokers 1 and 2 are those that are killed and restarted."""
    libraries()
    with ProcessCluster(tmp_path, controllers=[KBROKER], brokers=kinds, settings=QUICK_SESSIONS) as cluster:
        cluster.start()
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        create(cluster, TOPIC, "--partitions", "6", "--replication-factor", "3")
        produce_and_consume(cluster, TOPIC, "first")
        assert [cluster.leader(TOPIC, index) for index in range(6)] == [1, 2, 3, 1, 2, 3], "spread evenly"

        cluster.brokers[1].kill()
        until(lambda: cluster.leader(TOPIC, ask=2) in (2, 3), patience_s=60)
        cluster.await_isrs(TOPIC, 2, 3)
        cluster.brokers[1].start()
        cluster.await_brokers(1, 2, 3)
        cluster.await_isrs(TOPIC, 1, 2, 3)
        tool("LeaderElectionCommand", *servers, "--election-type", "PREFERRED", "--all-topic-partitions")
        until(lambda: cluster.leader(TOPIC) == 1)

        controller = cluster.controllers[100]
        controller.kill()
        controller.start()
        produce_and_consume(cluster, TOPIC, "second", total=2 * RECORDS)
        cluster.brokers[2].stop()
        cluster.await_isrs(TOPIC, 1, 3)
        cluster.brokers[2].start()
        cluster.await_brokers(1, 2, 3)
        cluster.await_isrs(TOPIC, 1, 2, 3)
        assert controller.stop() == 0
        controller.start()

        plan = tmp_path / "plan.json"
        targets = enumerate(([3, 2], [1]))
        moved = [{"topic": TOPIC, "partition": index, "replicas": replicas} for index, replicas in targets]
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        run = ("reassign.ReassignPartitionsCommand", *servers, "--reassignment-json-file", str(plan))
        tool(*run, "--execute")
        until(lambda: "in progress" not in tool(*run, "--verify"), patience_s=60)
        until(lambda: (cluster.leader(TOPIC, 0), cluster.leader(TOPIC, 1)) == (3, 1))
        produce_and_consume(cluster, TOPIC, "third", total=3 * RECORDS)

        observers = tool("MetadataQuorumCommand", *servers, "describe", "--replication").splitlines()
        assert sorted(line.split()[0] for line in observers[1:] if line) == ["1", "100", "2", "3"]
        directly = ("--bootstrap-controller", controller.address)
        status = tool("MetadataQuorumCommand", *directly, "describe", "--status").split()
        assert status[status.index("LeaderId:") + 1] == "100"
        for broker in (1, 2, 3):
            cluster.brokers[broker].stop()
        assert cluster.replicas_become_equal(TOPIC, range(2, 6), patience_s=0)
