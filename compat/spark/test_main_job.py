"""The main job on real data: a year of flights goes to a tiered topic, to MinIO, and to Parquet."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from compat.brokers import KbrokerProcess, free_port
from compat.minio import BUCKET, MinioServer, binary
from compat.spark.flights import ROWS, SCHEMA, flights
from compat.tiered.minio_fixtures import admin
from compat.tiered.site import HURRIED, LATEST, LATEST_TIERED, ONLY_THE_ACTIVE_ONE, Site, Sites
from kbroker.spark.jobs.decoding import Decoding
from kbroker.spark.jobs.export import ExportSummary, export

EARLY = ROWS * 4 // 5
TOPIC = "flights"


class Pipeline:
    """MinIO, a broker with its tier there, and the topic."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.minio = MinioServer(directory / "minio")
        self.minio.directory.mkdir()
        stack.callback(self.minio.kill)
        self.minio.start()
        admin(self.minio).make_bucket(BUCKET)
        self.http = free_port()
        store = {f"rsm.config.{name}": text for name, text in self.minio.settings().items()}
        self.store = {"remote.log.storage.manager.class.name": "minio", **store}
        settings = {**HURRIED, **self.store, "kbroker.http.listener": f"127.0.0.1:{self.http}"}
        overrides = [f"{key}={text}" for key, text in settings.items()]
        self.broker = KbrokerProcess(directory / "broker", overrides=overrides)
        self.broker.start()
        stack.callback(self.broker.kill)
        self.site = Site(self.broker, directory)
        configs = {"remote.storage.enable": "true", "segment.bytes": "1000000", "retention.ms": "-1"}
        self.site.create(TOPIC, {**configs, **ONLY_THE_ACTIVE_ONE}, partitions=1)

    def produce(self, table: pa.Table, *, at_once: int, pause: Callable[[], object] = lambda: None) -> None:
        """Each row as JSON; the timestamp is the scheduled hour, the key is the aircraft."""
        producer = Producer({"bootstrap.servers": self.site.address, "compression.type": "zstd", "linger.ms": 5})
        for batch in table.to_batches(at_once):
            for row in batch.to_pylist():
                value, time_ms = json.dumps(row).encode(), event_time_ms(row["time_hour"])
                producer.produce(TOPIC, value, row["tailnum"], timestamp=time_ms)
            assert producer.flush(60) == 0
            pause()

    def end(self) -> int:
        """The number of records."""
        return self.site.offset(TOPIC, LATEST)[1]

    def await_tier(self) -> None:
        """Wait until the tier has at least four fifths of them."""
        end = self.end()
        Sites([self.site]).expect(lambda site: site.offset(TOPIC, LATEST_TIERED)[1] > end * 4 // 5, True)

    def metric(self, name: str) -> float:
        """A counter of the topic from /metrics; 0 if it is missing."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = f'kafka_server_brokertopicmetrics_{name}_total{{topic="{TOPIC}"}}'
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))

    def export(self, spark: SparkSession, output: Path) -> ExportSummary:
        """Export all current records as columns, from the tier and the broker."""
        schema = StructType.fromDDL(SCHEMA).jsonValue()
        options = {"kafka.bootstrap.servers": self.site.address, **self.store}
        decoding = Decoding("json", schema)
        return export(
            spark, topic=TOPIC, output=str(output), options=options, decoding=decoding, max_records_per_batch=150_000
        )


@pytest.fixture
def pipeline(kafka_libraries: Path, tmp_path: Path) -> Iterator[Pipeline]:
    assert kafka_libraries.is_dir()  # the schemas of its requests
    binary()
    with ExitStack() as stack:
        yield Pipeline(tmp_path, stack)


def test_the_exported_parquet_equals_the_data_set(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    table, output = flights(), tmp_path / "parquet"
    pipeline.produce(table.slice(0, EARLY), at_once=20_000)
    pipeline.await_tier()
    done = threading.Event()
    # Rows arrive continuously until the first export is complete, as they would in production.
    late = threading.Thread(
        target=pipeline.produce, args=(table.slice(EARLY),), kwargs={"at_once": 500, "pause": lambda: done.wait(0.1)}
    )
    late.start()
    try:
        first = pipeline.export(spark, output)
        arrived_meanwhile = pipeline.end() - first.rows
    finally:
        done.set()
        late.join()
    assert first.is_complete
    assert EARLY <= first.rows < ROWS
    assert arrived_meanwhile > 0
    pipeline.await_tier()
    second = pipeline.export(spark, output)
    assert (second.rows, second.bad_rows) == (ROWS - first.rows, 0)
    assert pipeline.metric("remotefetchbytes") == 0, "tiered records must not be fetched from the broker"
    assert_same(read(output), table)


def read(output: Path) -> pa.Table:
    """The exported rows in the order of their offsets, read with Arrow and without Spark."""
    files = sorted(str(path) for path in output.glob("date=*/partition=0/*.parquet"))
    return pa.dataset.dataset(files, partitioning="hive", partition_base_dir=str(output)).to_table().sort_by("offset")


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """Check the offset, timestamp, key and columns of every row, and its directory, which is the day."""
    assert found.column("offset").to_pylist() == list(range(expected.num_rows))
    assert found.select(expected.column_names).cast(expected.schema).equals(expected)
    times = [event_time_ms(text) for text in expected.column("time_hour").to_pylist()]
    assert found.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist() == times
    keys = [None if text is None else text.encode() for text in expected.column("tailnum").to_pylist()]
    assert found.column("key").to_pylist() == keys
    days = [text[:10] for text in expected.column("time_hour").to_pylist()]
    assert [str(day) for day in found.column("date").to_pylist()] == days


def event_time_ms(text: str) -> int:
    """The milliseconds of a time like `2013-01-01T10:00:00Z`."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)
