"""The rows of an export, with or without decoded values, and the files that they are written to.

    key, value, topic, offset, timestamp, timestampType, headers       as stored
    date, partition                                                    the directories; date is the timestamp's, in UTC

With decoding, the fields of the value replace `value` and are the last columns, or one struct. Rows that could not be
decoded have their value and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from kbroker.spark.errors import InvalidOption, JobError
from kbroker.spark.jobs.decoding import Decoder, Decoding
from kbroker.spark.jobs.export_log import ExportedFile, Range
from kbroker.spark.jobs.files import HadoopDirectory
from kbroker.spark.jobs.session import SMALL_BATCHES, session_settings
from kbroker.spark.schema import ALL_COLUMNS

BASE: Final = ("key", "topic", "offset", "timestamp", "timestampType", "headers", "date", "partition")
RAW: Final = "_kbroker_value"
REASON: Final = "_kbroker_reason"
DAY_MICROS: Final = 86_400_000_000
# Does not use the session's time zone: days are in UTC.
DATE: Final = (
    f"CAST(date_add(DATE'1970-01-01', CAST((unix_micros(timestamp) - pmod(unix_micros(timestamp), {DAY_MICROS})) "
    f"DIV {DAY_MICROS} AS INT)) AS STRING)"
)


# By default Spark writes times as INT96, which few programs other than Spark and Hive read.
SETTINGS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", **SMALL_BATCHES}


def identity_schema(decoding: Decoding | None, into: str | None) -> dict[str, Any]:
    """The schema of the files, without the directories.

    Errors  InvalidOption if a field has the name of another column, or a type that cannot be decoded
    """
    omitted = {"partition"} if decoding is None else {"partition", "value"}
    columns = [each.jsonValue() for each in ALL_COLUMNS if each.name not in omitted]
    if decoding is not None:
        Decoder(decoding)
        added = _added(decoding, into)
        taken = {name.lower() for name in (*BASE, RAW, REASON)}
        for each in added:
            if each["name"].lower() in taken:
                raise InvalidOption(
                    f"the schema's field {each['name']!r} has the name of another column",
                    remedy="put the fields into one struct with --into NAME, or rename it in the schema",
                )
            taken.add(each["name"].lower())
        columns += added
    return {"type": "struct", "fields": columns}


def _added(decoding: Decoding, into: str | None) -> list[dict[str, Any]]:
    if into is not None:
        return [{"name": into, "type": dict(decoding.schema), "nullable": True, "metadata": {}}]
    return [dict(each) for each in decoding.schema["fields"]]


def rows_of(records: DataFrame, decoding: Decoding | None, into: str | None) -> DataFrame:
    """One row for each record. With decoding it also has the raw value, and the reason if it could not be decoded."""
    dated = records.withColumn("date", F.expr(DATE))
    if decoding is None:
        return dated.select(*BASE[:1], "value", *BASE[1:])
    given = dated.select(*BASE, dated["value"].alias(RAW))
    # Rows that could not be decoded have none of the fields, so each of them is nullable.
    added = [StructField.fromJson({**each, "nullable": True}) for each in _added(decoding, into)]
    schema = StructType([*given.schema.fields, *added, StructField(REASON, StringType())])
    return given.mapInArrow(partial(decoded_batches, decoding=decoding, into=into), schema)


def good_rows(rows: DataFrame, decoding: Decoding | None) -> DataFrame:
    """The rows that could be decoded; all rows without decoding."""
    return rows if decoding is None else rows.where(f"{REASON} IS NULL").drop(RAW, REASON)


def bad_rows(rows: DataFrame) -> DataFrame:
    """The other rows, with their raw values and the reason."""
    chosen = rows.where(f"{REASON} IS NOT NULL")
    return chosen.select(*BASE, F.col(RAW).alias("value"), F.col(REASON).alias("reason"))


def decoded_batches(
    batches: Iterator[pa.RecordBatch], decoding: Decoding, into: str | None
) -> Iterator[pa.RecordBatch]:
    """Batches with the raw value, the fields of the value, and the reason."""
    from pyarrow import compute  # noqa: PLC0415  (only needed for decoding)

    decoder = Decoder(decoding)
    for batch in batches:
        values = batch.column(RAW)
        columns, texts = decoder.decode(values.to_pylist())
        reasons, names = pa.array(texts, pa.string()), decoder.names
        if into is not None:
            # A record whose fields are all null is a struct; tombstones and bad records are null.
            is_none = compute.or_(reasons.is_valid(), values.is_null())
            columns, names = [pa.StructArray.from_arrays(columns, names, mask=is_none)], [into]
        # Drop the raw value of decoded rows: it is not needed any more, and would be sent to the JVM.
        kept = compute.if_else(reasons.is_valid(), values, pa.scalar(None, values.type))
        given = [kept if name == RAW else batch.column(name) for name in batch.schema.names]
        yield pa.RecordBatch.from_arrays([*given, *columns, reasons], [*batch.schema.names, *names, REASON])


# --- files ---


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
