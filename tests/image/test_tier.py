"""Tiered topics in a container: by variables alone, and with everything in the volume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image.test_entry_point import LOOPBACK, READY, Container
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

TIERED = {"remote.storage.enable": "true", "segment.bytes": "1000", "retention.ms": "-1"}
QUICK = {"KAFKA_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "100", **LOOPBACK}
LOOKS = 500


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_the_tier_in_the_volume_is_not_taken_for_topics(container: Container) -> None:
    with container.running(container.kafka / "run", **QUICK) as running:
        log = running.wait_for(READY)
        assert "setting name=rsm.config.dir value=[hidden]" in log
        with running.client() as client:
            configs = [CreatableTopicConfig(name=key, value=text) for key, text in TIERED.items()]
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=configs)
            created = client.ask(CreateTopicsRequest(topics=[topic]), version=5)
            assert created.topics[0].error_code == 0
            for _ in range(4):
                batch = build_batch([Record(0, 1_000, None, bytes(800))])
                data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
                request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data)
                produced = client.ask(request, version=7)
                assert produced.responses[0].partition_responses[0].error_code == 0
            tier = container.path / "data" / "tier"
            end = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=4, partition_max_bytes=1)])
            for _ in range(LOOKS):
                if len(list(tier.rglob("*.manifest.json"))) == 3:
                    break
                client.ask(FetchRequest(max_wait_ms=20, min_bytes=1, topics=[end]), version=11)
        assert len(list(tier.rglob("*.manifest.json"))) == 3
        assert running.stop() == 0
    with container.running(container.kafka / "run", **QUICK) as running:
        running.wait_for(READY)
        assert running.stop() == 0
        assert "removing the files" not in running.log
    assert len(list(tier.rglob("*.manifest.json"))) == 3


def test_variables_configure_a_store_and_the_log_hides_its_keys(container: Container) -> None:
    variables = {
        "KAFKA_REMOTE_LOG_STORAGE_MANAGER_CLASS_NAME": "minio",
        "KAFKA_RSM_CONFIG_ENDPOINT": "http://127.0.0.1:1",
        "KAFKA_RSM_CONFIG_BUCKET": "b",
        "KAFKA_RSM_CONFIG_ACCESS_KEY": "swordfish",
        "KAFKA_RSM_CONFIG_SECRET_KEY": "swordfish",
        **LOOPBACK,
    }
    with container.running(container.kafka / "run", **variables) as running:
        log = running.wait_for(READY)
        assert running.stop() == 0
    assert "setting name=remote.log.storage.manager.class.name value=minio" in log
    assert "setting name=rsm.config.secret.key value=[hidden]" in log
    assert "swordfish" not in log


def test_the_tier_can_be_switched_off_and_elsewhere(container: Container) -> None:
    elsewhere = container.path / "elsewhere"
    with container.running(
        container.kafka / "run", KAFKA_REMOTE_LOG_STORAGE_SYSTEM_ENABLE="false", **LOOPBACK
    ) as running:
        assert "setting name=remote.log.storage.system.enable value=false" in running.wait_for(READY)
        assert running.stop() == 0
    with container.running(container.kafka / "run", KAFKA_RSM_CONFIG_DIR=str(elsewhere), **LOOPBACK) as running:
        running.wait_for(READY)
        assert running.stop() == 0
    assert not (container.path / "data" / "tier").exists()
