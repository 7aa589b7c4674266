"""A single node opens a controller listener, another broker joins, and partitions move to it under load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat.brokers import free_port
from compat.cluster import KAFKA, KBROKER
from compat.cluster.nodes import COMMON, Node, brokers_seen
from compat.kafka import libraries
from compat.kafka.tools import start_tool, tool
from compat.waiting import until

TOPIC = "orders"
RECORDS = 20_000
ALONE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": COMMON["offsets.topic.num.partitions"],
    "group.initial.rebalance.delay.ms": "0",
}


@contextmanager
def nodes(directory: Path, kind: str) -> Iterator[tuple[Node, Node, str]]:
    """A single kbroker node, a broker that can join it later, and the address for the controller listener."""
    first, second, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
    alone = {"process.roles": "broker,controller", "listeners": f"PLAINTEXT://{first}"}
    joining = {"process.roles": "broker", "listeners": f"PLAINTEXT://{second}"}
    # Kafka's brokers find the controller of a static quorum only in the list of its voters.
    voters = {"controller.quorum.voters": f"1@{controller}"}
    known = voters if kind == KAFKA else {"controller.quorum.bootstrap.servers": controller}
    one = Node(directory / "one", kind=KBROKER, node_id=1, settings={**ALONE, **alone})
    two = Node(directory / "two", kind=kind, node_id=2, settings={**COMMON, **ALONE, **joining, **known})
    try:
        yield one, two, controller
    finally:
        for node in (one, two):
            if node.is_running:
                node.kill()


@pytest.mark.parametrize("kind", [KBROKER, KAFKA])
def test_r10_a_single_node_grows_while_clients_write(tmp_path: Path, kind: str) -> None:
    libraries()
    with nodes(tmp_path, kind) as (one, two, controller):
        one.start()
        until(lambda: brokers_seen(one.address) == {1}, patience_s=30)
        address = one.address
        servers = ("--bootstrap-server", address)
        tool("TopicCommand", *servers, "--create", "--topic", TOPIC, "--partitions", "4", "--replication-factor", "1")
        produce = ("ProducerPerformance", *servers, "--topic", TOPIC, "--record-size", "100", "--num-records")
        tool(*produce, str(RECORDS), "--throughput", "-1")
        assert one.stop() == 0

        listeners = f"PLAINTEXT://{address},CONTROLLER://{controller}"
        one.settings.update({"listeners": listeners, "controller.listener.names": "CONTROLLER"})
        one.start()
        two.start()
        until(lambda: brokers_seen(address) == {1, 2}, patience_s=60)
        writing = start_tool(
            f"org.apache.kafka.tools.{produce[0]}", *produce[1:], str(RECORDS), "--throughput", "2000",
            "--command-property", "acks=all",
        )  # fmt: skip
        plan = tmp_path / "plan.json"
        targets = enumerate(([2, 1], [1, 2], [2], [1, 2]))
        moved = [{"topic": TOPIC, "partition": index, "replicas": replicas} for index, replicas in targets]
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        run = ("reassign.ReassignPartitionsCommand", *servers, "--reassignment-json-file", str(plan))
        tool(*run, "--execute")
        until(lambda: "in progress" not in tool(*run, "--verify"), patience_s=60)
        out, error = writing.communicate(timeout=60)
        assert writing.returncode == 0, out + error
        assert f"{RECORDS} records sent" in out

        described = tool("TopicCommand", *servers, "--describe", "--topic", TOPIC)
        assert "Replicas: 2,1" in described
        assert "Partition: 2\tLeader: 2\tReplicas: 2\tIsr: 2" in described
        consumed = tool(
            "ConsumerPerformance", *servers, "--topic", TOPIC, "--num-records", str(2 * RECORDS), "--group", "readers",
            "--timeout", "30000",
        )  # fmt: skip
        assert f", {2 * RECORDS}, " in consumed
