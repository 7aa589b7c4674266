"""kbroker as a broker under Apache Kafka's controllers."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.java_clients import RECORDS, create, produce_and_consume
from compat.cluster.nodes import Node
from compat.kafka import libraries
from compat.kafka.tools import run_tool, tool
from compat.oracle.raw import connected
from compat.waiting import until
from wire.types import uuid_to_text

INVALID_REQUEST = 42


@pytest.fixture(autouse=True)
def _java() -> None:
    libraries()


def await_end(node: Node, *, timeout_s: float = 30) -> str:
    """Wait until a node has ended by itself; returns its log."""
    assert node.process is not None
    assert node.process.wait(timeout_s) == 1
    return node.log_tail()


@pytest.fixture(name="small")
def _small(tmp_path: Path) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER]) as cluster:
        yield cluster


def test_stock_clients_use_a_kbroker_broker_under_kafkas_controller(small: ProcessCluster) -> None:
    small.start()
    create(small, "orders", "--partitions", "3", "--replication-factor", "1")
    produce_and_consume(small, "orders", "readers")
    broker = small.brokers[1]
    assert broker.stop() == 0
    broker.start()
    small.await_brokers(1)
    produce_and_consume(small, "orders", "others", total=2 * RECORDS)
    broker.kill()  # its session is still live at the controller
    broker.start()
    small.await_brokers(1)
    produce_and_consume(small, "orders", "third", total=3 * RECORDS)


def test_the_controller_sees_the_broker_as_an_observer(small: ProcessCluster) -> None:
    small.start()
    controller = next(iter(small.controllers.values())).address
    status = tool("MetadataQuorumCommand", "--bootstrap-controller", controller, "describe", "--replication")
    rows = [line.split() for line in status.splitlines()]
    assert ["1", "Observer"] in [[row[0], row[-1]] for row in rows if row]


def test_both_kinds_of_brokers_know_each_other(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER, KAFKA]) as cluster:
        cluster.start()
        create(cluster, "mine", "--replica-assignment", "1,2,1,2")
        for ask in (1, 2):  # each broker learns of the topic in its own time
            until(lambda ask=ask: [cluster.leader("mine", index, ask=ask) for index in range(4)] == [1, 2, 1, 2])
        cluster.brokers[1].kill()
        until(lambda: cluster.seen_by(2) == {2}, patience_s=30)


def test_c1_the_broker_follows_the_next_controller_when_the_active_one_dies_or_hangs(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA] * 3, brokers=[KBROKER, KAFKA]) as cluster:
        cluster.start()
        for number, suspends in enumerate((False, True, False)):
            active = cluster.controllers[cluster.active_controller()]
            if suspends:
                active.pause()
            else:
                active.kill()
            create(cluster, f"topic-{number}", "--replica-assignment", "1,2")
            produce_and_consume(cluster, f"topic-{number}", f"group-{number}")
            time.sleep(10)  # longer than the session's time-out
            assert cluster.seen_by(2) == {1, 2}, "the new controller gets the heartbeats"
            if suspends:
                active.resume()
            else:
                active.start()
        assert "the controller has fenced this broker" not in cluster.brokers[1].log()
        assert cluster.brokers[1].stop() == 0


def _controllers(cluster: ProcessCluster) -> str:
    return ",".join(node.address for node in cluster.controllers.values())


def test_a_cluster_with_an_older_metadata_version_is_refused_by_name(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER], release="3.8") as cluster:
        for node in cluster.nodes:
            node.start()
        assert "the cluster has finalized metadata.version=20, which kbroker does not support" in await_end(
            cluster.brokers[1]
        )


def test_a_cluster_with_kafkas_own_defaults_is_joined(tmp_path: Path) -> None:
    """All features of Apache Kafka 4.3 are finalized; share and streams groups are refused, and Kafka keeps theirs."""
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER, KAFKA], release=None) as cluster:
        cluster.start()
        create(cluster, "new", "--partitions", "4", "--replication-factor", "2")
        produce_and_consume(cluster, "new", "readers")
        described = tool("FeatureCommand", "--bootstrap-server", cluster.bootstrap_servers, "describe")
        finalized = dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", described))
        assert finalized == {
            "eligible.leader.replicas.version": "1",
            "group.version": "1",
            "kraft.version": "0",
            "metadata.version": "4.3-IV0",
            "share.version": "1",
            "streams.version": "1",
            "transaction.version": "2",
        }


def test_share_and_streams_groups_are_refused_by_name(tmp_path: Path) -> None:
    """The features are finalized, but the only broker serves no such groups: clients end with the reason."""
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER], release=None) as cluster:
        cluster.start()
        create(cluster, "new", "--partitions", "1", "--replication-factor", "1")
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        consumer, groups = "org.apache.kafka.tools.consumer", ("--describe", "--group", "g")
        for arguments, reason in (
            (
                (
                    f"{consumer}.ConsoleShareConsumer",
                    *servers,
                    "--topic",
                    "new",
                    "--group",
                    "g",
                    "--timeout-ms",
                    "3000",
                ),
                "The cluster does not support the share group protocol",
            ),
            (
                (f"{consumer}.group.ShareGroupCommand", *servers, *groups),
                "The node does not support SHARE_GROUP_DESCRIBE",
            ),
            (
                ("org.apache.kafka.tools.streams.StreamsGroupCommand", *servers, *groups),
                "The node does not support STREAMS_GROUP_DESCRIBE",
            ),
        ):
            done = run_tool(*arguments)
            assert reason in done.stdout + done.stderr
        produce_and_consume(cluster, "new", "g")  # no such group was made


def test_the_metadata_version_rises_while_brokers_run(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER] * 3) as cluster:
        cluster.start()
        create(cluster, "before", "--partitions", "1", "--replication-factor", "3")
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        for feature in ("metadata.version=30", "eligible.leader.replicas.version=1", "transaction.version=2"):
            tool("FeatureCommand", *servers, "upgrade", "--feature", feature)
        create(cluster, "after", "--partitions", "1", "--replication-factor", "3")
        for topic in ("before", "after"):
            produce_and_consume(cluster, topic, f"of-{topic}")
        cluster.brokers[1].kill()
        cluster.brokers[1].start()
        cluster.await_brokers(1, 2, 3)
        for topic in ("before", "after"):
            produce_and_consume(cluster, topic, f"again-{topic}", total=2 * RECORDS)


def test_a_broker_of_another_cluster_is_refused(small: ProcessCluster) -> None:
    for node in small.controllers.values():
        node.start()
    broker = small.brokers[1]
    broker.data.mkdir(parents=True)
    (broker.data / "meta.properties").write_text(
        "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\ndirectory.id=TCCQwPkwSxO4graAU8EyXQ\n"
    )
    broker.start()
    assert "belongs to another cluster than this data directory (MkU3OEVBNTcwNTJENDM2Qg)" in await_end(broker)


def test_a_node_id_that_another_live_broker_has_is_refused(small: ProcessCluster, tmp_path: Path) -> None:
    small.start()
    first = small.brokers[1]
    settings = {
        **first.settings,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "initial.broker.registration.timeout.ms": "3000",
    }
    second = Node(tmp_path / "second", kind=KBROKER, node_id=1, settings=settings)
    second.start()
    try:
        assert "another running broker has node.id=1" in await_end(second)
    finally:
        if second.is_running:
            second.kill()
    assert small.seen_by(1) == {1}


def test_a_dynamic_quorum_is_found_by_its_bootstrap_servers(small: ProcessCluster) -> None:
    for node in small.nodes:
        voter = node.settings.pop("controller.quorum.voters")
        node.settings["controller.quorum.bootstrap.servers"] = voter.partition("@")[2]
    (controller,) = small.controllers.values()
    controller.format_flags.append("--standalone")
    controller.settings["metadata.log.max.record.bytes.between.snapshots"] = "100"
    small.start()
    create(small, "orders", "--partitions", "1", "--replication-factor", "1")
    produce_and_consume(small, "orders", "readers")
    broker = small.brokers[1]
    assert broker.stop() == 0
    shutil.rmtree(broker.data / "__cluster_metadata-0")
    broker.start()
    small.await_brokers(1)
    assert "installed a metadata snapshot" in broker.log_tail()
    produce_and_consume(small, "orders", "others", total=2 * RECORDS)


def test_a_dynamic_quorum_of_three_is_found_by_one_address(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA] * 3, brokers=[KBROKER]) as cluster:
        voters = ",".join(
            f"{node_id}@{node.address}:{uuid_to_text(UUID(int=(node_id << 100) + 1))}"
            for node_id, node in cluster.controllers.items()
        )
        for node in cluster.nodes:
            del node.settings["controller.quorum.voters"]
            node.settings["controller.quorum.bootstrap.servers"] = _controllers(cluster)
            node.format_flags += ["--initial-controllers", voters]
        cluster.brokers[1].settings["controller.quorum.bootstrap.servers"] = cluster.controllers[100].address
        cluster.start()
        cluster.controllers[100].kill()  # the only one that the broker's settings name
        create(cluster, "first", "--partitions", "1", "--replication-factor", "1")
        cluster.controllers[100].start()
        cluster.controllers[cluster.active_controller()].kill()
        create(cluster, "second", "--partitions", "1", "--replication-factor", "1")
        produce_and_consume(cluster, "second", "readers")


def test_a_broker_that_lost_its_data_leads_only_when_the_loss_is_accepted(small: ProcessCluster) -> None:
    """A data directory that lost its partitions is not taken for an in-sync replica."""
    small.start()
    create(small, "orders", "--partitions", "3", "--replication-factor", "1")
    produce_and_consume(small, "orders", "readers")
    broker = small.brokers[1]
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()
    small.await_brokers(1)
    until(lambda: "the last in-sync replica was in another data directory" in broker.log_tail(), patience_s=30)
    assert {small.leader("orders", index) for index in range(3)} == {-1}
    servers = ("--bootstrap-server", small.bootstrap_servers)
    accepting = (
        "--entity-type",
        "topics",
        "--entity-name",
        "orders",
        "--add-config",
        "unclean.leader.election.enable=true",
    )
    tool("kafka.admin.ConfigCommand", *servers, "--alter", *accepting)

    def leads_again() -> bool:
        # It fails until the broker has reported its directory, and always for the offsets topic.
        run_tool(
            "org.apache.kafka.tools.LeaderElectionCommand",
            *servers,
            "--election-type",
            "unclean",
            "--all-topic-partitions",
        )
        return {small.leader("orders", index) for index in range(3)} == {1}

    until(leads_again, patience_s=60)
    assert {small.leader("__consumer_offsets", index) for index in range(3)} == {-1}


def test_a_suspended_broker_is_fenced_and_comes_back(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER, KAFKA]) as cluster:
        cluster.start()
        create(cluster, "orders", "--replica-assignment", "1")
        cluster.brokers[1].pause()
        until(lambda: cluster.seen_by(2) == {2}, patience_s=30)
        cluster.brokers[1].resume()
        until(lambda: cluster.seen_by(2) == {1, 2}, patience_s=30)
        until(lambda: cluster.leader("orders", ask=2) == 1, patience_s=30)


def test_c2_clients_are_served_while_no_controller_runs(small: ProcessCluster) -> None:
    small.start()
    create(small, "orders", "--partitions", "1", "--replication-factor", "1")
    produce_and_consume(small, "orders", "readers")
    (controller,) = small.controllers.values()
    controller.kill()
    produce_and_consume(small, "orders", "others", total=2 * RECORDS)
    controller.start()
    create(small, "after", "--partitions", "1", "--replication-factor", "1")
    assert small.brokers[1].stop() == 0


def test_java_takes_over_the_directory_of_a_kbroker_broker_and_gives_it_back(small: ProcessCluster) -> None:
    small.start()
    create(small, "orders", "--partitions", "3", "--replication-factor", "1")
    produce_and_consume(small, "orders", "first")
    broker = small.brokers[1]
    for kind, expected in ((KAFKA, 2 * RECORDS), (KBROKER, 3 * RECORDS)):
        assert broker.stop() in {0, 143}  # a JVM that a signal ends
        broker.kind = kind
        broker.start()
        small.await_brokers(1)
        produce_and_consume(small, "orders", f"after-{kind}", total=expected)


def test_a_broker_checks_changes_of_settings_before_it_forwards_them(tmp_path: Path) -> None:
    """Kafka's controllers store what a broker forwards. Kafka's brokers give the same answers."""
    key = "log.retention.ms"

    def alter(asked: int, name: str, change: tuple[str, int, str | None]) -> int:
        config = dict(zip(("Name", "ConfigOperation", "Value"), change, strict=True))
        resource = {"ResourceType": 4, "ResourceName": name, "Configs": [config]}
        with connected(cluster.brokers[asked].address) as connection:
            answer = connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        return int(answer["Responses"][0]["ErrorCode"])

    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER, KAFKA]) as cluster:
        cluster.start()
        for asked, other in ((1, "2"), (2, "1")):
            assert alter(asked, str(asked), (key, 0, "9000")) == 0
            for name, change in (
                (other, (key, 0, "9000")),
                (str(asked), (key, 0, "x")),
                (str(asked), (key, 0, None)),
                (str(asked), (key, 9, "9000")),
                ("", ("listeners", 0, "PLAINTEXT://:1")),
            ):
                assert alter(asked, name, change) == INVALID_REQUEST, (asked, name, change)
