"""A batch of an export as Parquet files: writes them to the staging directory, counts their rows, and lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kbroker.spark.errors import JobError
from kbroker.spark.jobs.export_log import ExportedFile, Range
from kbroker.spark.jobs.files import HadoopDirectory
from kbroker.spark.jobs.session import SMALL_BATCHES, session_settings

# By default Spark writes times as INT96, which few programs other than Spark and Hive read.
SETTINGS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", **SMALL_BATCHES}


def save(directory: HadoopDirectory, frame: DataFrame, path: str) -> None:
    """Write rows below a path of the directory, by date and partition, in offset order."""
    with session_settings(frame.sparkSession, SETTINGS):
        (
            frame.sortWithinPartitions("date", "partition", "offset")
            .write.mode("overwrite")
            .option("compression", "zstd")
            .partitionBy("date", "partition")
            .parquet(f"{directory.path}/{path}")
        )


def counted_rows(
    spark: SparkSession, directory: HadoopDirectory, path: str, batch: Mapping[int, Range]
) -> dict[int, int]:
    """Count the written rows by partition, by reading them.

    Errors  JobError if they are not rows of the batch, which then must not be committed
    """
    frame = spark.read.schema("offset bigint, partition int").parquet(f"{directory.path}/{path}")
    found = frame.groupBy("partition").agg(F.count(F.lit(1)), F.min("offset"), F.max("offset")).collect()
    counted: dict[int, int] = {}
    for partition, count, first, latest in found:
        wanted = batch[partition]
        if first < wanted.start or latest >= wanted.end or count > wanted.end - wanted.start:
            raise JobError(
                f"{count} rows with the offsets {first} to {latest} were written for the offsets {wanted.start} to "
                f"{wanted.end - 1}",
                remedy="nothing was committed; this is a bug in the job, please report it",
                object_name=f"{directory.path}/{path}",
            )
        counted[partition] = count
    return counted


def staged_files(directory: HadoopDirectory, path: str, prefix: str, number: int) -> list[ExportedFile]:
    """The files below a path, each with its final path below `prefix`, which is unique among all batches."""
    found = []
    for file, size in directory.files(path):
        parent, _, name = file.rpartition("/")
        if not name.startswith(("_", ".")):
            found.append(ExportedFile(f"{path}/{file}", f"{prefix}{parent}/batch-{number:08d}-{name}", size))
    return found
