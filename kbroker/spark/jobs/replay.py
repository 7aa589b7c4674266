"""`kbroker spark replay`: writes the records of a topic, or of Parquet files, into a topic unchanged.

Keys, values, headers, timestamps and the order within each source partition are preserved. One task writes each
partition of the target. `replay_plan` and `replay_task` describe how an interrupted replay resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructField, StructType

from kbroker.spark.client import LATEST
from kbroker.spark.errors import InvalidOption, ReplayConflict, unknown_topic
from kbroker.spark.jobs.replay_plan import ReplayPlan, parse_plan, refuse_another
from kbroker.spark.jobs.replay_sources import ParquetSource, TopicSource
from kbroker.spark.jobs.replay_task import RESULT, TARGET, Assignment, replay_rows
from kbroker.spark.jobs.session import SMALL_BATCHES, session_settings
from kbroker.spark.jobs.target import TargetClient, foreign_writer
from kbroker.spark.options import SourceOptions
from wire.compression import Codec
from wire.partitioner import partition_of_key
from wire.types import uuid_from_text, uuid_to_text

SLOT: Final = "_kbroker_slot"
BATCH_BYTES: Final = 256 << 10


@dataclass(slots=True)
class ReplaySummary:
    """The result of a run.

    Shape  before and written count records by target partition; is_resumed: an earlier run began the replay;
           was_done: and completed it, so that this run only read the plan
    """

    job_id: str
    source: str
    target: str
    is_resumed: bool
    was_done: bool = False
    before: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def replay(
    spark: SparkSession,
    *,
    target: str,
    options: Mapping[str, str],
    topic: str | None = None,
    source_options: Mapping[str, str] | None = None,
    parquet: str | None = None,
    job_id: str | None = None,
    by_key: bool = False,
    codec: Codec = Codec.NONE,
    progress: Callable[[str], None] | None = None,
) -> ReplaySummary:
    """Write the records of `topic` or of the files in `parquet` into `target`.

    `options` name the target's broker (`kafka.*`); `source_options` are those of `format("kbroker")` for the source,
    by default the same. `job_id` identifies a replay that is resumed; it is the name of a consumer group on the target.
    Errors  ReplayConflict, KbrokerSourceError
    """
    if (topic is None) == (parquet is None):
        raise InvalidOption("a replay needs exactly one source", remedy="name either a topic or Parquet files")
    if spark.conf.get("spark.speculation", "false") == "true":
        raise InvalidOption(
            "spark.speculation is on, so two tasks could write the same records",
            remedy="start the session with spark.speculation=false",
        )
    client = SourceOptions.parse({**_of_client(options), "subscribe": target}).client
    if client is None:
        raise InvalidOption("no broker is named for the target", remedy="set kafka.bootstrap.servers")
    tell = progress or (lambda _text: None)
    source: TopicSource | ParquetSource
    if topic is not None:
        source = TopicSource(spark, topic, options if source_options is None else source_options)
    else:
        assert parquet is not None
        source = ParquetSource(spark, parquet)
    job_id = job_id or f"kbroker-replay-{source.short_name}-to-{target}"
    with closing(TargetClient(client)) as connection:
        plan, is_resumed, settings = _plan(connection, source, target=target, job_id=job_id, by_key=by_key)
        summary = ReplaySummary(job_id, source.name, target, is_resumed, plan.is_done)
        if plan.is_done:
            return summary
        summary.warnings = _warnings(settings)
        tell("writing")
        rows = _placed(spark, source.rows(plan.ranges), partitions=sorted(plan.bases), by_key=by_key)
        target_id = uuid_from_text(plan.target_id)
        assignment = Assignment(client, target, target_id, plan.bases, codec, _batch_bytes(settings))
        for index, before, written in _written(rows, assignment):
            summary.before[index], summary.written[index] = before, written
        tell("counting")
        _count(connection, plan, {at: summary.before[at] + written for at, written in summary.written.items()})
        connection.commit(job_id, target, replace(plan, is_done=True).offsets())
    return summary


def _of_client(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name.lower().startswith("kafka.")}


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan(
    connection: TargetClient, source: TopicSource | ParquetSource, *, target: str, job_id: str, by_key: bool
) -> tuple[ReplayPlan, bool, Mapping[str, str]]:
    """The committed plan, or a new one, which this commits; whether it was committed before; the target's settings."""
    found = connection.topics([target]).get(target)
    if found is None:
        raise unknown_topic(target)
    partitions, target_id = set(found.leaders), uuid_to_text(found.id)
    settings, committed = connection.topic_settings(target), connection.committed(job_id, target)
    if committed:
        plan = parse_plan(job_id, target, committed)
        refuse_another(plan, source=source.name, is_by_key=by_key, target_id=target_id, partitions=partitions)
        if not plan.is_done:
            _check_settings(settings, target)
        return plan, True, settings
    _check_settings(settings, target)
    ranges = source.ranges()
    if not by_key and (beyond := sorted(ranges.keys() - partitions)):
        raise ReplayConflict(
            f"the source has a partition {beyond[0]}, but the target has only {len(partitions)} partitions",
            remedy=f"create the target with {max(ranges) + 1} partitions, or replay --by-key",
            at=target,
        )
    ends = connection.offsets({(target, each): LATEST for each in partitions})
    bases = {index: each.offset for (_, index), each in ends.items()}
    plan = ReplayPlan(job_id, target, target_id, source.name, by_key, ranges, bases)
    connection.commit(job_id, target, plan.offsets())
    return plan, False, settings


def _check_settings(settings: Mapping[str, str], target: str) -> None:
    """Errors: ReplayConflict if the target's settings would change the records."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        raise ReplayConflict(
            "the target has message.timestamp.type=LogAppendTime, which would replace the records' timestamps",
            remedy="set message.timestamp.type=CreateTime for the target",
            at=target,
        )


def _warnings(settings: Mapping[str, str]) -> list[str]:
    """Settings of the target that may delete what is written."""
    warnings = []
    if (kept := settings.get("retention.ms", "-1")) != "-1" and "delete" in settings.get("cleanup.policy", "delete"):
        warnings.append(
            f"the target keeps records for {kept} ms by their timestamps, so old ones expire at once: set "
            "retention.ms=-1 to keep them"
        )
    if "compact" in settings.get("cleanup.policy", ""):
        warnings.append("the target is compacted, so an interrupted replay may not find its last record")
    return warnings


def _batch_bytes(settings: Mapping[str, str]) -> int:
    """The maximum size of a batch before compression: small enough that a batch of several records never exceeds the
    target's limits.
    """
    limits = [settings.get(name, "") for name in ("max.message.bytes", "segment.bytes")]
    return min([BATCH_BYTES, *(int(limit) // 2 for limit in limits if limit.isdigit())])


def _count(connection: TargetClient, plan: ReplayPlan, expected: Mapping[int, int]) -> None:
    """Check that the target has grown by exactly the written records. Errors: ReplayConflict."""
    ends = connection.offsets({(plan.target, each): LATEST for each in plan.bases})
    for partition, found in sorted(ends.items()):
        grown = found.offset - plan.bases[partition[1]]
        if grown != (wanted := expected.get(partition[1], 0)):
            what = f"the log has grown by {grown} records, but the source has {wanted}"
            raise foreign_writer(partition, plan.bases[partition[1]] + wanted, what)


# --- placing and writing ----------------------------------------------------------------------------------------------


def _placed(spark: SparkSession, rows: DataFrame, *, partitions: Sequence[int], by_key: bool) -> DataFrame:
    """The rows with their target partition, one task for each of `partitions`, in the order of writing."""
    count = len(partitions)
    columns = rows.selectExpr("partition", "offset", "unix_millis(timestamp) AS _kbroker_ms", "key", "value", "headers")
    if by_key:

        def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return by_keys(batches, count)

        schema = StructType([*columns.schema.fields, StructField(TARGET, IntegerType())])
        placed = columns.mapInArrow(place, schema)
    else:
        placed = columns.withColumn(TARGET, F.col("partition"))
    # Spark assigns rows to tasks by the hash of a number. Use one number for each task that hashes to it.
    slots = _slots(spark, count)
    chosen = F.create_map(*[F.lit(value) for pair in zip(partitions, slots, strict=True) for value in pair])
    slotted = placed.withColumn(SLOT, chosen[F.col(TARGET)])
    return slotted.repartition(count, SLOT).sortWithinPartitions(TARGET, "partition", "offset").drop(SLOT)


def _slots(spark: SparkSession, count: int) -> list[int]:
    """For each of `count` tasks a number whose hash assigns a row to it."""
    found: dict[int, int] = {}
    tried, step = 0, max(64, 8 * count)
    while len(found) < count:
        frame = spark.range(tried, tried + step).selectExpr(
            "CAST(id AS INT) AS number", f"pmod(hash(CAST(id AS INT)), {count}) AS task"
        )
        for row in frame.collect():
            found.setdefault(row["task"], row["number"])
        tried += step
    return [found[task] for task in range(count)]


def by_keys(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Batches with the partition that Kafka's clients choose for the key; without a key the source's number decides."""
    for batch in batches:
        keys, numbers = batch.column("key").to_pylist(), batch.column("partition").to_pylist()
        chosen = [
            number % count if key is None else partition_of_key(key, count)
            for key, number in zip(keys, numbers, strict=True)
        ]
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(chosen, pa.int32())], [*batch.schema.names, TARGET])


def _written(rows: DataFrame, assignment: Assignment) -> list[tuple[int, int, int]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return replay_rows(batches, assignment)

    with session_settings(rows.sparkSession, SMALL_BATCHES):
        return [tuple(row) for row in rows.mapInArrow(write, RESULT).collect()]
