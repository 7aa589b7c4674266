"""Apache Kafka and kbroker in one cluster with one tier: each reads and follows what the other has copied."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.tiered_load import (
    BUILT,
    PATIENCE_S,
    TIERED,
    TOPIC,
    Load,
    local_start,
    reassign,
    tier_settings,
)
from compat.kafka import libraries
from compat.kafka.node import tier_settings as kafka_tier_settings
from compat.waiting import until
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC


def test_a_tier_is_shared_by_both_kinds_of_brokers(tmp_path: Path) -> None:
    libraries()
    settings = {
        **tier_settings(tmp_path),
        **kafka_tier_settings(tmp_path / "tier"),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
        "log.initial.task.delay.ms": "500",
    }
    with ProcessCluster(
        tmp_path, controllers=[KBROKER], brokers=[KAFKA, KBROKER, KBROKER], settings=settings
    ) as cluster:
        for node in (cluster.brokers[2], cluster.brokers[3]):
            node.settings["remote.log.storage.manager.class.name"] = "compat.tiered.kafka_storage:KafkaDirectory"
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        # Apache Kafka leads the tier's metadata until its broker is killed.
        for replicas in ([1], [1, 2, 3]):
            reassign(cluster, tmp_path, replicas, topic=REMOTE_LOG_METADATA_TOPIC)
            cluster.await_isrs(REMOTE_LOG_METADATA_TOPIC, *replicas)
        assert cluster.leader(REMOTE_LOG_METADATA_TOPIC) == 1
        config = {**TIERED, "segment.bytes": str(1 << 20)}
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config=config)
        admin.create_topics([new])[TOPIC].result(30)
        load = Load(cluster.bootstrap_servers, size=10_000)
        load.produce(600)
        until(lambda: local_start(cluster, 1) > 400, patience_s=PATIENCE_S)

        # An empty kbroker follows Apache Kafka's leader, and takes over.
        cluster.brokers[2].kill()
        shutil.rmtree(cluster.brokers[2].data / f"{TOPIC}-0")
        cluster.brokers[2].start()
        cluster.await_isrs(TOPIC, 1, 2)
        assert BUILT in cluster.brokers[2].log()
        load.read(cluster.bootstrap_servers)
        cluster.brokers[1].kill()
        until(lambda: cluster.leader(TOPIC, ask=2) == 2, patience_s=PATIENCE_S)
        load.produce(600)
        load.read(cluster.bootstrap_servers)
        until(lambda: local_start(cluster, 2) > 1_000, patience_s=PATIENCE_S)

        # An empty broker of Apache Kafka follows kbroker's leader, and takes over.
        shutil.rmtree(cluster.brokers[1].data / f"{TOPIC}-0")
        cluster.brokers[1].start()
        cluster.await_isrs(TOPIC, 1, 2)
        assert local_start(cluster, 1) > 1_000
        cluster.brokers[2].kill()
        until(lambda: cluster.leader(TOPIC, ask=1) == 1, patience_s=PATIENCE_S)
        load.produce(600)
        load.read(cluster.bootstrap_servers)
        until(lambda: local_start(cluster, 1) > 1_600, patience_s=PATIENCE_S)
        load.read(cluster.bootstrap_servers)
