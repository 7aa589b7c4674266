"""Tiered topics on a kbroker, ways to read them, and segments with known borders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from compat.tiered.site import ONLY_THE_ACTIVE_ONE, TIERED, Records, Site, Sites
from kbroker.spark import load
from kbroker.spark.errors import KbrokerSourceError

HASTY = {"kafka.default.api.timeout.ms": "1500"}
"""How long a job waits for a broker that does not answer."""


@dataclass(frozen=True)
class Source:
    """A broker with its tier. Shape: store are the options that name it; loads: read by `kbroker.spark.load`."""

    site: Site
    store: Mapping[str, str]
    loads: bool = False

    @property
    def broker(self) -> dict[str, str]:
        """The options that name the broker."""
        return {"kafka.bootstrap.servers": self.site.address, **HASTY}

    def rows(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A batch read from broker and store."""
        return self.read(spark, {**self.broker, **self.store, "subscribe": topic}, options)

    def stored_rows(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A batch read from the store, without a broker."""
        return self.read(spark, {**self.store, "subscribe": topic}, options)

    def read(
        self,
        spark: SparkSession,
        named: Mapping[str, str],
        options: Mapping[str, object] | None = None,
        schema: str | StructType | None = None,
    ) -> DataFrame:
        """A batch read by `load` or `format`, as `loads` says; options as in `read`."""
        return read(spark, named, options or {}, schema, loads=self.loads)

    def stream(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A stream from broker and store."""
        wanted = {**self.broker, **self.store, "subscribe": topic, "includeHeaders": "true"}
        wanted |= {name.replace("__", "."): str(value) for name, value in options.items()}
        return spark.readStream.format("kbroker").options(**wanted).load()

    def filled(self, topic: str, hours: list[int], *, records: int = 10, partitions: int = 1) -> str:
        """Create a topic with one segment for each hour of batches, the same in each partition. Only the tier has the
        segments, except for the last one. Returns the topic's name.
        """
        self.site.create(topic, {**TIERED, **ONLY_THE_ACTIVE_ONE}, partitions=partitions)
        batches = Records(hours, records=records).batches()
        for partition in range(partitions):
            self.site.produce(topic, batches, partition=partition)
        active = (len(hours) - hours.count(hours[-1])) * records
        for partition in range(partitions):
            Sites([self.site]).expect(lambda site, at=partition: site.local_segments(topic, at), [active])
        return topic

    def object_count(self, topic: str) -> int:
        """The number of a topic's segments in a directory tier."""
        return len(self.objects(topic))

    def objects(self, topic: str, kind: str = "log") -> list[Path]:
        """The files of one kind in a directory tier, by their first offsets."""
        # Unlike Path.glob, this continues if a directory is removed at the same time.
        found = map(Path, glob(f"{self.site.tier_directory}/{topic}-*/*/*.{kind}"))
        return sorted(found, key=lambda path: (path.parent.name, path.name))


def read(
    spark: SparkSession,
    named: Mapping[str, str],
    options: Mapping[str, object],
    schema: str | StructType | None = None,
    *,
    loads: bool = False,
) -> DataFrame:
    """A batch read. In names of options, two underscores stand for a dot."""
    wanted = {"includeHeaders": "true", **named}
    wanted |= {name.replace("__", "."): str(value) for name, value in options.items()}
    if loads:
        return load(spark, wanted, schema)
    reader = spark.read.format("kbroker").options(**wanted)
    return (reader if schema is None else reader.schema(schema)).load()


@contextmanager
def started(directory: Path) -> Iterator[Source]:
    """A broker for one test, with its tier in a directory."""
    site = Site.in_directory(directory, is_kafka=False)
    site.broker.start()
    try:
        yield Source(site, {"rsm.config.dir": str(site.tier_directory)})
    finally:
        site.broker.kill()


def offsets_of(frame: DataFrame) -> list[int]:
    """The sorted offsets of all rows, of all partitions together."""
    return sorted(row.offset for row in frame.select("offset").collect())


def offsets_by_partition(frame: DataFrame) -> dict[int, list[int]]:
    """The offsets of all rows by partition, sorted."""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


class Sink:
    """A directory with rows and a checkpoint, in which tests restart a stream."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._rows, self._checkpoint = spark, str(directory / "rows"), str(directory / "checkpoint")

    def start(self, stream: DataFrame, *, available_now: bool = False) -> StreamingQuery:
        """Start a stream that continues at the checkpoint."""
        writer = stream.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(self._rows)

    def run(self, stream: DataFrame) -> list[int]:
        """Run a stream until it has read everything. Returns the number of rows of each batch."""
        query = self.start(stream)
        try:
            query.processAllAvailable()
            return [each.numInputRows for each in query.recentProgress if each.numInputRows]
        finally:
            query.stop()

    def finish(self, stream: DataFrame) -> list[int]:
        """The same with Trigger.AvailableNow."""
        query = self.start(stream, available_now=True)
        query.awaitTermination()
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]

    def offsets(self) -> dict[int, list[int]]:
        """The offsets of all rows by partition, sorted."""
        return offsets_by_partition(self._spark.read.parquet(self._rows))


@contextmanager
def fails(*said: str) -> Iterator[None]:
    """A query fails, and Spark's message contains all of these words and a remedy."""
    try:
        yield
    except (PySparkException, Py4JJavaError, KbrokerSourceError) as error:
        text = str(error)
        for word in (*said, "Remedy: "):
            assert word in text, f"{word!r} is not in\n{text}"
    else:
        raise AssertionError("the query came to its end")
