"""Admin clients: topics, partitions, settings and deleted records; another request verifies each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as ConfluentNewTopic
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import OffsetSpec as PythonOffsetSpec
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from compat.brokers import Broker
from compat.clients import kafka_python
from compat.clients.conftest import NewTopic
from compat.clients.samples import Sample, samples


def test_kafka_python_administers(broker: Broker, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("kafka-python-admin")
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        created = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000000"}}}
        admin.create_topics(created, wait_for_metadata=True)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics(created)
        assert name in {topic["name"] for topic in admin.describe_topics()}
        admin.create_partitions({name: 5})
        described = admin.describe_topics([name])[0]
        assert sorted(partition["partition_index"] for partition in described["partitions"]) == list(range(5))
        admin.alter_configs([PythonConfigResource("TOPIC", name, {"retention.ms": "5000", "segment.ms": "70000"})])
        changed = admin.describe_configs([PythonConfigResource("TOPIC", name)], config_filter="modified")["topic"][name]
        assert {key: config["value"] for key, config in changed.items()} == {
            "retention.ms": "5000",
            "segment.ms": "70000",
        }
        kafka_python.produce(
            broker.bootstrap_servers, name, 4, samples(20, seed=1, null_headers=False), "none", idempotent=False
        )
        partition = TopicPartition(name, 4)
        deleted = admin.delete_records({partition: 7})
        assert deleted[partition]["low_watermark"] == 7
        found = admin.list_partition_offsets({partition: PythonOffsetSpec.EARLIEST})
        assert found[partition].offset == 7
        with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=None)) as consumer:
            assert consumer.beginning_offsets([partition]) == {partition: 7}
            assert consumer.end_offsets([partition]) == {partition: 20}
        admin.delete_topics([name])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([name])
        assert admin.describe_cluster()["cluster_id"]


def test_confluent_administers(broker: Broker, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("confluent-admin")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    created = ConfluentNewTopic(name, 2, 1, config={"retention.ms": "1000000"})
    admin.create_topics([created], operation_timeout=10)[name].result(10)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([created])[name].result(10)
    admin.create_partitions([NewPartitions(name, 4)], operation_timeout=10)[name].result(10)
    listed = admin.list_topics(name, timeout=10)
    assert sorted(listed.topics[name].partitions) == [0, 1, 2, 3]
    set_, delete = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("segment.ms", "70000", incremental_operation=set_),
            ConfigEntry("retention.ms", None, incremental_operation=delete),
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(10)
    asked = ConfigResource(ResourceType.TOPIC, name)
    configs = admin.describe_configs([asked])[asked].result(10)
    assert configs["segment.ms"].value == "70000"
    assert not configs["segment.ms"].is_default
    assert configs["retention.ms"].value == "604800000"
    assert len(configs) > 25
    kafka_python.produce(
        broker.bootstrap_servers, name, 3, samples(20, seed=2, null_headers=False), "gzip", idempotent=True
    )
    asked_partition = ConfluentPartition(name, 3, 9)
    low = admin.delete_records([asked_partition])[asked_partition].result(10)
    assert low.low_watermark == 9
    for spec, offset in ((OffsetSpec.earliest(), 9), (OffsetSpec.latest(), 20)):
        partition = ConfluentPartition(name, 3)
        assert admin.list_offsets({partition: spec})[partition].result(10).offset == offset
    cluster = admin.describe_cluster().result(10)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap_servers]
    admin.delete_topics([name], operation_timeout=10)[name].result(10)
    assert name not in admin.list_topics(timeout=10).topics


def test_aiokafka_administers(broker: Broker, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("aiokafka-admin")
    records = [Sample(None, b"%d" % number, 1_700_000_000_000) for number in range(20)]

    async def create_and_alter() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            created = await admin.create_topics([AioNewTopic(name, 2, 1, topic_configs={"retention.ms": "1000000"})])
            assert [error[1] for error in created.topic_errors] == [0]
            assert name in await admin.list_topics()
            grown = await admin.create_partitions({name: AioNewPartitions(3)})
            assert [error[1] for error in grown.topic_errors] == [0]
            described = (await admin.describe_topics([name]))[0]
            assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1, 2]
            resource = AioConfigResource(AioConfigResourceType.TOPIC, name)
            configs = (await admin.describe_configs([resource]))[0].resources[0][4]
            assert {config[0]: config[1] for config in configs}["retention.ms"] == "1000000"
            assert (await admin.describe_cluster())["brokers"][0]["port"] == int(broker.bootstrap_servers.split(":")[1])
        finally:
            await admin.close()

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            low = await admin.delete_records({AioPartition(name, 2): RecordsToDelete(before_offset=6)})
            assert low == {AioPartition(name, 2): 6}
            deleted = await admin.delete_topics([name])
            assert [error[1] for error in deleted.topic_error_codes] == [0]
        finally:
            await admin.close()

    asyncio.run(create_and_alter())
    kafka_python.produce(broker.bootstrap_servers, name, 2, records, "none", idempotent=False)
    asyncio.run(delete())


def test_a_topic_created_by_a_producer_exists_at_once(broker: Broker, new_topic_name: Callable[[str], str]) -> None:
    """Automatic creation: the first answer says that the topic is unknown, and every client retries."""
    from compat.clients import aio, confluent  # noqa: PLC0415

    records = samples(12, seed=3, null_headers=False)
    for client in (kafka_python, confluent, aio):
        topic = new_topic_name("automatic")
        client.produce(broker.bootstrap_servers, topic, 0, records, "none", idempotent=False)
        assert client.consume(broker.bootstrap_servers, topic, {0: 12}) == {0: records}


def test_topics_of_any_setting_are_created(new_topic: NewTopic) -> None:
    assert new_topic("settings", partitions=2, cleanup_policy="delete", segment_bytes="1048576")
