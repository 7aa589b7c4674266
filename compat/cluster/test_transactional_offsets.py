"""Offsets in transactions: brokers of both kinds coordinate transactions and groups for each other."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.java_clients import create
from compat.kafka import libraries
from compat.waiting import until

GROUP, TRANSACTION = 0, 1
PATIENCE_S = 90


def coordinator(cluster: ProcessCluster, key: str, kind: int) -> int:
    """The broker that coordinates a group or a transactional id."""
    found = -1

    def is_known() -> bool:
        nonlocal found
        with cluster.connect(1) as connection:
            answer = connection.call("FindCoordinator", 3, {"Key": key, "KeyType": kind})
        found = answer["NodeId"]
        return found > 0

    until(is_known, each_s=0.1, patience_s=PATIENCE_S)
    return found


def one_on_each(cluster: ProcessCluster, stem: str, kind: int) -> dict[int, str]:
    """A key for each broker that it coordinates."""
    found: dict[int, str] = {}
    for number in range(100):
        key = f"{stem}-{number}"
        found.setdefault(coordinator(cluster, key, kind), key)
        if set(found) == set(cluster.brokers):
            return found
    raise AssertionError(f"all {stem} are on {found}")


def test_every_pair_of_coordinators_commits_and_aborts(tmp_path: Path) -> None:
    """In a cluster with Kafka's own defaults."""
    libraries()
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=[KBROKER, KAFKA], release=None) as cluster:
        cluster.start()
        create(cluster, "input", "--partitions", "1", "--replication-factor", "2")
        groups, ids = one_on_each(cluster, "group", GROUP), one_on_each(cluster, "t", TRANSACTION)
        for kind, transactional_id in ids.items():
            producer = Producer(
                {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": transactional_id, "acks": "all"}
            )
            producer.init_transactions(PATIENCE_S)
            for broker, group in groups.items():
                reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
                for offset, is_commit in ((10 * kind + broker, True), (99, False)):
                    producer.begin_transaction()
                    producer.produce("input", b"%d" % offset)
                    places = [TopicPartition("input", 0, offset)]
                    producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), PATIENCE_S)
                    if is_commit:
                        producer.commit_transaction(PATIENCE_S)
                    else:
                        producer.abort_transaction(PATIENCE_S)
                    (found,) = reader.committed([TopicPartition("input", 0)], PATIENCE_S)
                    assert found.offset == 10 * kind + broker, (kind, broker, is_commit)
                reader.close()
