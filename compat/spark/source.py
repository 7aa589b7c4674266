"""kbroker's topics on a broker with a tier: what is read of them, and segments whose borders a test knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from compat.tiered.site import ONLY_THE_ACTIVE_ONE, TIERED, Records, Site, Sites
from kbroker.spark import load
from kbroker.spark.errors import KbrokerSourceError

HASTY = {"kafka.default.api.timeout.ms": "1500"}
"""So soon a job gives a broker up that does not answer."""


@dataclass(frozen=True)
class Source:
    """A broker with its tier, and how a job names both. Shape: store are options; loads: by `kbroker.spark.load`."""

    site: Site
    store: Mapping[str, str]
    loads: bool = False

    @property
    def broker(self) -> dict[str, str]:
        """The options that name the broker."""
        return {"kafka.bootstrap.servers": self.site.address, **HASTY}

    def rows(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A batch read by broker and store."""
        return self.read(spark, {**self.broker, **self.store, "subscribe": topic}, options)

    def stored_rows(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A batch read by the store alone."""
        return self.read(spark, {**self.store, "subscribe": topic}, options)

    def read(
        self,
        spark: SparkSession,
        named: Mapping[str, str],
        options: Mapping[str, object] | None = None,
        schema: str | StructType | None = None,
    ) -> DataFrame:
        """A batch read in this source's way; options as in `read`."""
        return read(spark, named, options or {}, schema, loads=self.loads)

    def stream(self, spark: SparkSession, topic: str, **options: object) -> DataFrame:
        """A stream by broker and store."""
        wanted = {**self.broker, **self.store, "subscribe": topic, "includeHeaders": "true"}
        wanted |= {name.replace("__", "."): str(value) for name, value in options.items()}
        return spark.readStream.format("kbroker").options(**wanted).load()

    def filled(self, topic: str, hours: list[int], *, records: int = 10, partitions: int = 1) -> str:
        """A topic whose batches of an hour are a segment, in each partition the same; all in the tier and none here but
        for those of the last hour. Its name.
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
        """How many segments a directory tier has of a topic."""
        return len(self.objects(topic))

    def objects(self, topic: str, kind: str = "log") -> list[Path]:
        """The files of this kind in a directory tier, by their first offsets."""
        # Unlike Path.glob this goes on where a directory is removed under it.
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
    """A batch read; in the names of options two underlines stand for a dot."""
    wanted = {"includeHeaders": "true", **named}
    wanted |= {name.replace("__", "."): str(value) for name, value in options.items()}
    if loads:
        return load(spark, wanted, schema)
    reader = spark.read.format("kbroker").options(**wanted)
    return (reader if schema is None else reader.schema(schema)).load()


@contextmanager
def started(directory: Path) -> Iterator[Source]:
    """A broker of a test's own, with its tier on a directory."""
    site = Site.in_directory(directory, is_kafka=False)
    site.broker.start()
    try:
        yield Source(site, {"rsm.config.dir": str(site.tier_directory)})
    finally:
        site.broker.kill()


def offsets_of(frame: DataFrame) -> list[int]:
    """The offsets of all rows, sorted; partitions are not told apart."""
    return sorted(row.offset for row in frame.select("offset").collect())


@contextmanager
def fails(*said: str) -> Iterator[None]:
    """A query fails, and what Spark shows has all of these words, and what to do."""
    try:
        yield
    except (PySparkException, Py4JJavaError, KbrokerSourceError) as error:
        text = str(error)
        for word in (*said, "Remedy: "):
            assert word in text, f"{word!r} is not in\n{text}"
    else:
        raise AssertionError("the query came to its end")
