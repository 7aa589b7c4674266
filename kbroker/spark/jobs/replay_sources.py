"""The sources of a replay: a topic, or Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kbroker.spark.errors import IncompleteExport, InvalidOption, ReplayConflict
from kbroker.spark.jobs.bounds import find_bounds, read_ranges, without_positions
from kbroker.spark.jobs.export_log import COMMITS, SUCCESS, Range
from kbroker.spark.jobs.files import HadoopDirectory

NEEDED: Final = ("key", "value", "partition", "offset", "timestamp")


class TopicSource:
    """The records of a topic. Shape: name contains the topic id, if there is one; short_name does not."""

    def __init__(self, spark: SparkSession, topic: str, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._topic = topic
        self._options = dict(options)
        # Positions in the options apply to new replays only; the plan of a resumed one has its ranges.
        self._bounds = find_bounds(without_positions(options), topic)
        self.short_name = topic
        self.name = f"the topic {topic} {self._bounds.topic_id or ''}".rstrip()

    def ranges(self) -> dict[int, Range]:
        """The current offsets of the topic, limited by the options."""
        bounds = find_bounds(self._options, self._topic)
        return {at: Range(start, bounds.ends[at]) for at, start in bounds.starts.items()}

    def rows(self, ranges: Mapping[int, Range]) -> DataFrame:
        """The records of these offsets. Errors: ReplayConflict if some have expired."""
        for partition, each in sorted(ranges.items()):
            start = self._bounds.log_starts.get(partition, each.start)
            if each.start < min(start, each.end):
                raise ReplayConflict(
                    f"the records up to offset {min(start, each.end) - 1} expired since the replay began; without them "
                    "it cannot be resumed",
                    remedy="replay the remaining records into an empty topic with another --job-id",
                    at=(self._topic, partition),
                    offset=each.start,
                )
        return read_ranges(self._spark, self._topic, self._options, ranges)


class ParquetSource:
    """The rows of Parquet files. Errors: InvalidOption, and IncompleteExport for an export in progress."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path = path
        self.short_name = path.rstrip("/").rpartition("/")[2] or "files"
        self.name = f"the files in {path}"
        directory = HadoopDirectory(spark, path)
        commits = _complete_commits(directory)
        try:
            frame = spark.read.parquet(path)
        except AnalysisException as error:
            raise InvalidOption(
                f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}",
                remedy="name a directory of Parquet files, for example what `kbroker spark export` wrote",
            ) from None
        if _complete_commits(directory) != commits:
            raise _incomplete(directory)  # Spark listed the files in between
        missing = [name for name in NEEDED if name not in frame.columns]
        if missing:
            raise InvalidOption(
                f"the files in {path} have no column {missing[0]}, only {', '.join(frame.columns)}",
                remedy=f"{', '.join(NEEDED)} are needed; an export that decoded values cannot be replayed",
            )
        self._frame = _typed(frame, path)

    def ranges(self) -> dict[int, Range]:
        """The first to the last offset of each partition."""
        found = (
            self._frame.groupBy("partition")
            .agg(F.min("offset"), F.max("offset"), F.count(F.lit(1)), F.countDistinct("offset"), F.count("timestamp"))
            .collect()
        )
        ranges: dict[int, Range] = {}
        for partition, first, latest, count, distinct, timed in found:
            if partition is None or first is None or count != distinct or timed != count:
                what = "has rows without a partition, an offset or a timestamp"
                if partition is not None and timed == count:
                    what = f"has {count} rows for {distinct} offsets of partition {partition}"
                raise InvalidOption(
                    f"{self._path} {what}",
                    remedy="remove duplicate rows, and give every row a partition, an offset and a timestamp",
                )
            ranges[partition] = Range(first, latest + 1)
        return ranges

    def rows(self, ranges: Mapping[int, Range]) -> DataFrame:
        """The rows within these offsets."""
        inside = F.lit(False)
        for partition, each in ranges.items():
            inside |= (F.col("partition") == partition) & F.col("offset").between(each.start, each.end - 1)
        return self._frame.where(inside)


def _complete_commits(directory: HadoopDirectory) -> list[str]:
    """The batches of a complete export; empty for other files. Errors: IncompleteExport."""
    commits = directory.names(COMMITS)
    if commits and not directory.exists(SUCCESS):
        raise _incomplete(directory)
    return commits


def _incomplete(directory: HadoopDirectory) -> IncompleteExport:
    return IncompleteExport(
        f"the export is not complete: there is no {SUCCESS}, or there was none while its files were listed",
        remedy="wait until kbroker spark export is done, or start it again, and then replay",
        object_name=directory.path,
    )


def _typed(frame: DataFrame, path: str) -> DataFrame:
    """The columns with the types of the data source. Errors: InvalidOption for types that cannot be cast exactly."""
    kinds = {field_.name: field_.dataType.simpleString() for field_ in frame.schema.fields}
    allowed = {
        "key": ("binary", "string", "void"), "value": ("binary", "string"), "partition": ("int", "bigint", "smallint"),
        "offset": ("bigint", "int"), "timestamp": ("timestamp",),
    }  # fmt: skip
    for name, types in allowed.items():
        if kinds[name] not in types:
            raise InvalidOption(
                f"the column {name} of {path} is {kinds[name]}", remedy=f"write it as {' or '.join(types)}"
            )
    chosen = [f"CAST({name} AS {types[0]}) AS {name}" for name, types in allowed.items()]
    if kinds.get("headers") == "array<struct<key:string,value:binary>>":
        chosen.append("headers")
    elif "headers" in kinds:
        raise InvalidOption(
            f"the column headers of {path} is {kinds['headers']}", remedy="write it as array<struct<key,value>>"
        )
    else:
        chosen.append("CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers")
    return frame.selectExpr(*chosen)
