"""Transactions over brokers of kbroker and of Apache Kafka: either coordinates, and either writes the markers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.kafka import libraries
from compat.oracle.raw import connected
from compat.waiting import until
from kbroker.coordinator.common.ports import partition_for

TOPIC, PARTITIONS = "mixed", 4
IDS = ("id-0", "id-1", "id-2")
"""One in each of the three partitions of `__transaction_state`."""


def finalize(cluster: ProcessCluster, level: int) -> None:
    """Finalize transaction.version, and wait until all brokers know it."""
    update = {"Feature": "transaction.version", "MaxVersionLevel": level, "UpgradeType": 1}
    for node in cluster.brokers.values():
        with connected(node.address) as connection:
            connection.call("UpdateFeatures", 1, {"timeoutMs": 30_000, "FeatureUpdates": [update]})
    client = {"ClientSoftwareName": "compat", "ClientSoftwareVersion": "1"}

    def is_known() -> bool:
        for node in cluster.brokers.values():
            with connected(node.address) as connection:
                found = connection.call("ApiVersions", 4, client)["FinalizedFeatures"]
                if level != sum(one["MaxVersionLevel"] for one in found if one["Name"] == update["Feature"]):
                    return False
        return True

    until(is_known, patience_s=60)


def transact(cluster: ProcessCluster, name: str) -> Counter[str]:
    """Transactions over all partitions, every second one aborted; returns what was committed."""
    committed: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    for number in range(4):
        producer.begin_transaction()
        values = [f"{name}-{number}-{partition}" for partition in range(PARTITIONS)]
        for partition, value in enumerate(values):
            producer.produce(TOPIC, value.encode(), partition=partition)
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed.update(values)
    return committed


def read_committed(cluster: ProcessCluster, count: int) -> Counter[str]:
    """What a consumer of committed records reads, until it has read `count` records and reached the ends."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: Counter[str] = Counter()

    def is_read() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            found[message.value().decode()] += 1
        ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, one), timeout=10)[1] for one in range(PARTITIONS)]
        at = [one.offset for one in consumer.position([TopicPartition(TOPIC, each) for each in range(PARTITIONS)])]
        return found.total() >= count and at == ends

    until(is_read, patience_s=60)
    consumer.close()
    return found


@pytest.mark.parametrize("version", [0, 2])
def test_k5_either_broker_coordinates_and_writes_markers(tmp_path: Path, version: int) -> None:
    assert libraries().is_dir()
    with ProcessCluster(tmp_path, controllers=(KAFKA,), brokers=(KBROKER, KAFKA)) as cluster:
        cluster.start()
        if version:
            finalize(cluster, version)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        committed: Counter[str] = Counter()
        for name in IDS:
            committed += transact(cluster, name)
        assert read_committed(cluster, committed.total()) == committed
        assert {partition_for(name, 3) for name in IDS} == {0, 1, 2}
        leaders = {cluster.leader("__transaction_state", index) for index in range(3)}
        assert leaders == {cluster.leader(TOPIC, index) for index in range(PARTITIONS)} == {1, 2}
