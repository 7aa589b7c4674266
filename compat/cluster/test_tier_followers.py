"""Replicas of a tiered partition on real processes: what the leader has deleted locally comes from the tier."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.tiered_load import BUILT, PATIENCE_S, TIERED, TOPIC, Load, local_start, reassign, tier_settings
from compat.kafka import libraries
from compat.waiting import until


def test_m11_replicas_without_records_come_in_from_the_tier_and_lead(tmp_path: Path) -> None:
    libraries()
    settings = tier_settings(tmp_path)
    with ProcessCluster(tmp_path, controllers=[KBROKER], brokers=[KBROKER] * 3, settings=settings) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config=TIERED)
        admin.create_topics([new])[TOPIC].result(30)
        load = Load(cluster.bootstrap_servers)
        load.produce(3_000)
        until(lambda: local_start(cluster, 1) > 2_000, patience_s=PATIENCE_S)

        cluster.brokers[2].kill()
        shutil.rmtree(cluster.brokers[2].data / f"{TOPIC}-0")
        cluster.brokers[2].start()
        cluster.await_brokers(1, 2, 3)
        cluster.await_isrs(TOPIC, 1, 2)
        assert BUILT in cluster.brokers[2].log()
        assert local_start(cluster, 2) > 2_000
        load.produce(500)

        reassign(cluster, tmp_path, [1, 2, 3])
        cluster.await_isrs(TOPIC, 1, 2, 3)
        assert BUILT in cluster.brokers[3].log()
        assert local_start(cluster, 3) > 2_000

        for dead in (1, 2):
            cluster.brokers[dead].kill()
            until(lambda dead=dead: cluster.leader(TOPIC, ask=3) in range(dead + 1, 4), patience_s=PATIENCE_S)
            load.produce(500)
            load.read(cluster.bootstrap_servers)
        assert cluster.leader(TOPIC, ask=3) == 3

        for dead in (1, 2):
            cluster.brokers[dead].start()
        cluster.await_brokers(1, 2, 3)
        cluster.await_isrs(TOPIC, 1, 2, 3)
        load.produce(500)
        load.read(cluster.bootstrap_servers)


def test_a_new_replica_starts_after_the_tier_if_it_may(tmp_path: Path) -> None:
    """KIP-1023; only metadata.version 4.2 has the version of ListOffsets that it needs."""
    libraries()
    with ProcessCluster(
        tmp_path, controllers=[KAFKA], brokers=[KBROKER] * 3, settings=tier_settings(tmp_path), release=None,
    ) as cluster:  # fmt: skip
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        config = {**TIERED, "segment.bytes": str(1 << 20), "local.retention.bytes": str(5 << 20)}
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1]], config=config)
        admin.create_topics([new])[TOPIC].result(30)
        load = Load(cluster.bootstrap_servers, size=10_000)
        load.produce(1_500)
        until(lambda: local_start(cluster, 1) > 500, patience_s=PATIENCE_S)
        # All closed segments are in the tier, also the last five, which are still in the leader's directory.
        until(lambda: len(list((tmp_path / "tier").rglob("*.log"))) >= 14, patience_s=PATIENCE_S)
        entry = ConfigEntry(
            "follower.fetch.last.tiered.offset.enable", "true", incremental_operation=AlterConfigOpType.SET
        )
        follower = ConfigResource(ResourceType.BROKER, "2", incremental_configs=[entry])
        admin.incremental_alter_configs([follower])[follower].result(30)
        reassign(cluster, tmp_path, [1, 2])
        cluster.await_isrs(TOPIC, 1, 2)
        assert BUILT in cluster.brokers[2].log()
        assert local_start(cluster, 2) > local_start(cluster, 1) + 250
        cluster.brokers[1].kill()
        until(lambda: cluster.leader(TOPIC, ask=2) == 2, patience_s=PATIENCE_S)
        load.produce(500)
        load.read(cluster.bootstrap_servers)


def test_a_new_replica_starts_at_the_log_start_if_the_tier_has_nothing_after_it(tmp_path: Path) -> None:
    """KIP-1023; the leader's first records are deleted, and none was ever copied."""
    libraries()
    settings = {**tier_settings(tmp_path), "follower.fetch.last.tiered.offset.enable": "true"}
    with ProcessCluster(
        tmp_path, controllers=[KAFKA], brokers=[KBROKER] * 3, settings=settings, release=None,
    ) as cluster:  # fmt: skip
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        config = {**TIERED, "segment.bytes": str(1 << 20)}
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1]], config=config)
        admin.create_topics([new])[TOPIC].result(30)
        Load(cluster.bootstrap_servers).produce(300)
        start = TopicPartition(TOPIC, 0, 200)
        admin.delete_records([start])[start].result(30)
        reassign(cluster, tmp_path, [1, 2])
        cluster.await_isrs(TOPIC, 1, 2)
        assert 150 < local_start(cluster, 2) <= 200, "a batch begins there"
        assert BUILT not in cluster.brokers[2].log()
