"""Batch reads and writes by Spark's stock connector: every record, key, header and timestamp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from compat.brokers import Broker
from compat.clients import kafka_python
from compat.spark.rows import by_partition, kafka_rows, numbered, written

NewTopic = Callable[..., str]


def test_a_batch_read_finds_every_record_and_a_batch_write_copies_them(
    spark: SparkSession, broker: Broker, new_topic: NewTopic
) -> None:
    servers, partitions = broker.bootstrap_servers, 5
    source = new_topic("spark", partitions=partitions, retention_ms="-1")
    target = new_topic("spark", partitions=partitions)
    records = written(servers, source, partitions=partitions, count=300)
    read = kafka_rows(spark, servers, source)
    assert by_partition(read) == numbered(records)
    assert {(row.topic, row.timestampType) for row in read.select("topic", "timestampType").distinct().collect()} == {
        (source, 0)
    }
    writer = read.select("key", "value", "headers").write.format("kafka").option("kafka.bootstrap.servers", servers)
    writer.option("topic", target).option("includeHeaders", "true").save()
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None)
    places = consumer.end_offsets([TopicPartition(target, partition) for partition in range(partitions)])
    consumer.close()
    copied = kafka_python.consume(servers, target, {place.partition: end for place, end in places.items()})
    sent = Counter((each.key, each.value, each.headers) for part in records.values() for each in part)
    assert Counter((each.key, each.value, each.headers) for part in copied.values() for each in part) == sent
