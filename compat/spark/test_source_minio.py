"""`format("kbroker")` on MinIO: the same rows with and without a broker, and the errors of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest
from minio import Minio
from pyspark.sql import SparkSession

from compat.brokers import KbrokerProcess
from compat.clients.samples import CODECS
from compat.minio import BUCKET, MinioServer
from compat.spark.rows import Records, by_partition, consumed, numbered, written
from compat.spark.source import Source, fails
from compat.tiered.minio_fixtures import admin, minio_server
from compat.tiered.site import HURRIED, LATEST_TIERED, ONLY_THE_ACTIVE_ONE, Site, Sites

__all__ = ["minio_server"]

COUNT = 1_500
HASTY = {"call.timeout.ms": "3000", "retries": "1", "retry.backoff.ms": "10"}


@dataclass(frozen=True)
class Filled:
    """A topic with a partition for each codec in a bucket. Shape: end has where each partition's tier ends."""

    source: Source
    topic: str
    records: Records
    end: dict[int, int]
    objects: Minio


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_libraries: Path,
    minio_server: MinioServer,
    new_topic_name: Callable[[str], str],
) -> Iterator[Filled]:
    assert kafka_libraries.is_dir()  # the schemas of its requests
    store = {f"rsm.config.{name}": text for name, text in {**minio_server.settings(prefix="spark"), **HASTY}.items()}
    store["remote.log.storage.manager.class.name"] = "minio"
    settings = [f"{name}={text}" for name, text in {**HURRIED, **store}.items()]
    directory, topic = tmp_path_factory.mktemp("minio"), new_topic_name("minio")
    broker = KbrokerProcess(directory, overrides=settings)
    broker.start()
    try:
        site = Site(broker, directory)
        config = {"remote.storage.enable": "true", "segment.bytes": "130000", "retention.ms": "-1"}
        site.create(topic, {**config, **ONLY_THE_ACTIVE_ONE}, partitions=len(CODECS))
        written(site.address, topic, partitions=len(CODECS), count=COUNT)
        end = {}
        for partition in range(len(CODECS)):
            Sites([site]).expect(lambda site, at=partition: len(site.local_segments(topic, at)), 1)
            end[partition] = site.offset(topic, LATEST_TIERED, partition=partition)[1] + 1
            assert end[partition] > 0
        records = consumed(site.address, topic, len(CODECS))
        yield Filled(Source(site, store), topic, records, end, admin(minio_server))
    finally:
        broker.kill()


def test_a_bucket_returns_all_rows_as_written(spark: SparkSession, filled: Filled) -> None:
    frame = filled.source.rows(spark, filled.topic, kbroker__chunk__bytes=1 << 16)
    assert by_partition(frame) == numbered(filled.records)


def test_a_bucket_is_read_without_a_broker(spark: SparkSession, filled: Filled) -> None:
    wanted = {
        partition: {offset: record for offset, record in records.items() if offset < filled.end[partition]}
        for partition, records in numbered(filled.records).items()
    }
    assert by_partition(filled.source.stored_rows(spark, filled.topic)) == wanted


def test_a_bucket_without_access_is_an_error(spark: SparkSession, filled: Filled) -> None:
    wrong = {"rsm__config__secret__key": "not-the-secret-at-all"}
    with fails("cannot be read", "its keys permit"):
        filled.source.stored_rows(spark, filled.topic, **wrong).count()
    with fails(f"{filled.topic}-", " at offset ", "SignatureDoesNotMatch"):  # of the task that fails first
        filled.source.rows(spark, filled.topic, **wrong).count()


def test_damaged_and_missing_objects_are_named(spark: SparkSession, filled: Filled) -> None:
    prefix = f"spark/{filled.topic}-"
    listed = filled.objects.list_objects(BUCKET, prefix=prefix, recursive=True)
    name = next(each.object_name for each in listed if each.object_name and each.object_name.endswith(".log"))
    response = filled.objects.get_object(BUCKET, name)
    whole = response.read()
    response.close()
    try:
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        filled.objects.put_object(BUCKET, name, BytesIO(bytes(damaged)), len(whole))
        with fails(name.removeprefix("spark/"), "kbroker tier scrub"):
            filled.source.rows(spark, filled.topic).count()
        filled.objects.remove_object(BUCKET, name)
        with fails(name.removeprefix("spark/"), "failOnDataLoss=false"):
            filled.source.rows(spark, filled.topic).count()
    finally:
        filled.objects.put_object(BUCKET, name, BytesIO(whole), len(whole))
    assert filled.source.rows(spark, filled.topic).count() == COUNT * len(CODECS)
