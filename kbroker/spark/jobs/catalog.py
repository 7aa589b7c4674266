"""`kbroker spark catalog`: prints or writes the segments of the tier, or their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row, SparkSession

from kbroker.spark.data_sources import SEGMENTS
from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.files import HadoopDirectory
from kbroker.spark.jobs.session import afterwards
from kbroker.spark.segments_source import SCHEMA


@dataclass(slots=True)
class CatalogSummary:
    """The result of a run. Shape: states counts segments or events by state. Units: bytes of finished segments."""

    states: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0
    output: str | None = None


def segments(spark: SparkSession, *, options: Mapping[str, str], topics: Sequence[str] | None = None) -> DataFrame:
    """The segments of all topics, or of some: one row each, in the latest state."""
    return spark.read.format(SEGMENTS).options(**_with_topics(options, topics)).load()


def segment_events(
    spark: SparkSession, *, options: Mapping[str, str], topics: Sequence[str] | None = None
) -> DataFrame:  # fmt: skip
    """The segment events of all topics, or of some, as a stream with one row each."""
    return spark.readStream.format(SEGMENTS).options(**_with_topics(options, topics)).load()


def _with_topics(options: Mapping[str, str], topics: Sequence[str] | None) -> dict[str, str]:
    return dict(options) if topics is None else {**options, "subscribe": ",".join(topics)}


def catalog(
    spark: SparkSession,
    *,
    options: Mapping[str, str],
    topics: Sequence[str] | None = None,
    all_states: bool = False,
    output: str | None = None,
    show: Callable[[Row], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> CatalogSummary:
    """Pass each segment to `show`, and write all of them to `output` as Parquet, replacing its contents.

    Deleted segments are omitted unless `all_states`.
    Errors  KbrokerSourceError, InvalidOption for an output that contains other files
    """
    tell = progress or (lambda _text: None)
    tell("reading the metadata")
    frame = segments(spark, options=options, topics=topics)
    if not all_states:
        frame = frame.where("state <> 'DELETE_SEGMENT_FINISHED'")
    if output is not None:
        _refuse_others(spark, output)
    # Persisted, so that the rows that are written are those that are shown, even if the tier changes in between.
    ordered = frame.orderBy("topic", "partition", "start_offset", "event_timestamp").persist()
    with afterwards(ordered.unpersist):
        summary = CatalogSummary(output=output)
        for row in ordered.collect():
            summary.states[row["state"]] = summary.states.get(row["state"], 0) + 1
            summary.segments += 1
            if row["state"] == "COPY_SEGMENT_FINISHED":
                summary.bytes += row["size_bytes"]
            if show is not None:
                show(row)
        if output is not None:
            tell(f"writing {output}")
            ordered.coalesce(1).write.mode("overwrite").parquet(output)
    return summary


def _refuse_others(spark: SparkSession, output: str) -> None:
    """Check that the output contains at most a catalog, complete or not. Errors: InvalidOption."""
    there = HadoopDirectory.for_writing(spark, output)
    names = [name for name in there.names("") if name not in {"_SUCCESS", "_temporary"}]
    strange = next((name for name in names if not name.endswith(".parquet")), None)
    if names and strange is None and spark.read.parquet(there.path).columns != SCHEMA.names:
        strange = f"{names[0]} with other columns"
    if strange is not None:
        raise InvalidOption(f"{there.path} contains {strange}, which is not a catalog", remedy="use another directory")


def follow(
    spark: SparkSession,
    *,
    options: Mapping[str, str],
    output: str,
    checkpoint: str,
    topics: Sequence[str] | None = None,
    once: bool = False,
) -> CatalogSummary:
    """Append each event to the Parquet files in `output`, exactly once over restarts with the same `checkpoint`.

    With `once` it ends when all current events have been written; otherwise it runs until a KeyboardInterrupt. The
    summary counts all events in the files.
    """
    directory = HadoopDirectory.for_writing(spark, output)
    events = segment_events(spark, options=options, topics=topics)
    writer = events.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if once else writer).start()
    try:
        with afterwards(query.stop):
            query.awaitTermination()
    except KeyboardInterrupt:
        if once:
            raise
    summary = CatalogSummary(output=output)
    if not directory.names(""):
        return summary  # interrupted before the first event was written
    for row in spark.read.schema(SCHEMA).parquet(output).groupBy("state").count().collect():
        summary.states[row["state"]] = row["count"]
    return summary
