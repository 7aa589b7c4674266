"""The readers of `format("kbroker")`, one for batch queries and one for streams.

Spark's planning process asks a reader for pieces; its workers call `read` with one of them.

Spark 4.0 tells a Python source the stream's position only indirectly. It asks for the latest offset without passing the
last one. But it plans each batch here before it runs it, and after a restart it first plans an empty batch at the last
offset of the checkpoint. So the last end offset passed to `partitions` is the stream's position, and admission control
counts from there.

The checkpoint does not contain the stream's first offset until the first batch is done. After a restart before that,
Spark asks again where the stream begins. Then the end of that first batch, which is known, replaces the latest offset:
the first run looked up both at the same time.

Source  PythonMicroBatchStream, MicroBatchExecution of Spark 4.0.0; KafkaMicroBatchStream of spark-sql-kafka-0-10 4.0.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.spark.admission import Pace, admitted
from kbroker.spark.errors import InvalidOption, OffsetsOutOfRange, UnknownTopic, expired, same_topics
from kbroker.spark.options import SourceOptions
from kbroker.spark.positions import MalformedPositions, Offsets, Partition, from_document, to_document
from kbroker.spark.reading import TaskReader
from kbroker.spark.schema import columns_of

if TYPE_CHECKING:
    from kbroker.spark.inventory import Extent
    from kbroker.spark.planning import Planner


class KbrokerReader(DataSourceReader):
    """Plans once on the driver; executors read. Errors: KbrokerSourceError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_batch()
        self._reader = TaskReader(self._options, columns_of(schema))

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task."""
        from kbroker.spark.planning import batch_tasks  # noqa: PLC0415  (executors do not plan)

        return [InputPartition(task) for task in batch_tasks(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task; Spark passes None if there are no tasks."""
        return iter(()) if partition is None else self._reader.rows(partition.value)


class KbrokerStreamReader(DataSourceStreamReader):
    """A stream. One instance per query lives in a driver process; workers get copies for `read`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(options).for_streaming()
        self._reader = TaskReader(self._options, columns_of(schema))
        self._pace = Pace(least=self._options.min_offsets_per_trigger, max_delay_ms=self._options.max_trigger_delay_ms)
        self._planner: Planner | None = None
        self._position: Offsets | None = None  # where the next batch begins, None if Spark has not said it yet
        self._began: Offsets | None = None  # where the stream begins, None until looked up
        self._has_begun = False  # whether Spark called initialOffset, which it does only for a new stream
        self._ids: dict[str, UUID] = {}

    # --- called by Spark ----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (PySpark's names)
        """Where the stream begins."""
        if self._began is None:
            self._began = self._beginning(self._extent(), self._position)
        self._has_begun = True
        return to_document(self._began, self._ids)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; where it begins if there are no, or not enough, offsets to read."""
        extent = self._extent()
        if self._position is None and self._began is None:
            self._began = self._beginning(extent, None)
        known = self._position if self._position is not None else self._began
        assert known is not None
        start = self._start_of(known, extent)
        end = {partition: max(extent.bounds[partition].end_offset, start[partition]) for partition in start}
        waiting = sum(end.values()) - sum(start.values())
        if self._pace.holds(waiting, now_ms=_now_ms()):
            return to_document(known, self._ids)
        return to_document(admitted(start, end, most=self._options.max_offsets_per_trigger), self._ids)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each task of a batch. With start == end, Spark only announces the stream's position."""
        if start == end:
            if self._position is None and self._began is not None and not self._has_begun:
                self._check_order()
            self._take(end)
            return []
        begin, _ = _read(start)
        wanted = self._take(end)
        extent = self._extent()
        begin = self._start_of(begin, extent, only=wanted)
        self._plans().held.hold(begin)
        return [InputPartition(task) for task in self._plans().tasks(begin, self._end_of(wanted, extent), extent)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._reader.rows(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint stores the offsets."""

    def stop(self) -> None:
        """Give leases back, and close the connections."""
        if self._planner is not None:
            self._planner.held.give_back()
            self._planner.close()

    # --- internals ----------------------------------------------------------------------------------------------------

    def _plans(self) -> Planner:
        if self._planner is None:
            from kbroker.spark.planning import Planner  # noqa: PLC0415  (workers do not plan)

            self._planner = Planner(self._options)
        return self._planner

    def _extent(self) -> Extent:
        """The partitions that exist now. Errors: TopicRecreated."""
        extent = self._plans().extent()
        same_topics(self._ids, extent.ids.items())
        self._ids |= extent.ids
        return extent

    def _take(self, document: dict[str, Any]) -> Offsets:
        """Note the stream's position as given by Spark. Errors: TopicRecreated, InvalidOption."""
        offsets, ids = _read(document)
        if self._position is None:
            same_topics(ids, self._ids.items())
            self._ids = ids | self._ids
        self._position = offsets
        return offsets

    def _check_order(self) -> None:
        """Refuse maxOffsetsPerTrigger if Spark asked for an end before it announced the position of a restarted stream.

        Trigger.AvailableNow with Spark's wrapper does that. The end was then counted from the stream's beginning.
        """
        if self._options.max_offsets_per_trigger is not None:
            raise InvalidOption(
                "maxOffsetsPerTrigger cannot be enforced with Trigger.AvailableNow and"
                " spark.sql.streaming.triggerAvailableNowWrapper.enabled: Spark 4.0 does not report the position",
                remedy="remove maxOffsetsPerTrigger, or disable the wrapper",
            )

    def _beginning(self, extent: Extent, first_end: Offsets | None) -> Offsets:
        """Where the stream begins, by the options. `first_end` is the end of its first batch, if a restart interrupted
        that batch.
        """
        if first_end is not None:
            bounds = {
                partition: found._replace(end_offset=max(first_end[partition], found.log_start_offset))
                for partition, found in extent.bounds.items()
                if partition in first_end
            }
            extent = extent._replace(bounds=bounds)
        return self._plans().starting(extent)

    def _start_of(self, known: Offsets, extent: Extent, *, only: Offsets | None = None) -> Offsets:
        """Where reading begins in each existing partition; new partitions begin at their start.

        Errors  RecordsExpired, OffsetsOutOfRange, UnknownTopic; with failOnDataLoss=false missing offsets are skipped
        """
        start: Offsets = {}
        for partition in sorted({*known, *extent.bounds} if only is None else only):
            there = extent.bounds.get(partition)
            if there is None:
                error = UnknownTopic(
                    "the stream has read this partition, which does not exist any more",
                    remedy="start with another checkpoint; failOnDataLoss=false continues without it",
                    at=partition,
                )
                self._options.lose(error)
                continue
            offset = known.get(partition)
            if offset is None:
                offset = there.log_start_offset
                if offset > 0:
                    self._options.lose(expired(partition, 0, log_start_offset=offset))
            elif offset < there.log_start_offset:
                self._options.lose(expired(partition, offset, log_start_offset=there.log_start_offset))
                offset = there.log_start_offset
            elif offset > there.end_offset:
                self._options.lose(_cut_off(partition, offset, there.end_offset))
                offset = there.end_offset
            start[partition] = offset
        return start

    def _end_of(self, wanted: Offsets, extent: Extent) -> Offsets:
        """Where a batch ends, for the partitions that exist."""
        end: Offsets = {}
        for partition, offset in wanted.items():
            there = extent.bounds.get(partition)
            if there is None:
                continue
            if offset > there.end_offset:
                self._options.lose(_cut_off(partition, offset, there.end_offset))
            end[partition] = min(offset, there.end_offset)
        return end


def _read(document: dict[str, Any]) -> tuple[Offsets, dict[str, UUID]]:
    try:
        return from_document(document)
    except MalformedPositions as error:
        raise InvalidOption(
            f"the offsets of the checkpoint are not from this source: {error}", remedy="use another checkpoint"
        ) from error


def _now_ms() -> int:
    from kbroker.runtime.env import RealEnv  # noqa: PLC0415  (workers need no clock)

    return RealEnv.now_ns() // 1_000_000


def _cut_off(partition: Partition, offset: int, end_offset: int) -> OffsetsOutOfRange:
    return OffsetsOutOfRange(
        f"the log ends at offset {end_offset} now, but the stream has read up to {offset}: the broker lost records,"
        " or the topic is another one",
        remedy="start with another checkpoint; failOnDataLoss=false continues at the end",
        at=partition,
        offset=offset,
    )
