"""One Spark task of a replay: writes the rows of one target partition in order.

The rows are sorted and include those that an earlier attempt wrote. Their number is the growth of the log since the
plan was made. The task skips them, and compares the last of them with the last record of the log. If they differ,
something else wrote to the partition, or the source has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from threading import Event
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from kbroker.spark.client import LATEST
from kbroker.spark.errors import ReplayConflict
from kbroker.spark.jobs.target import PartitionWriter, TargetClient, foreign_writer
from kbroker.spark.positions import Partition
from wire.compression import Codec
from wire.record_batch import Record

SETTLED_SECONDS: Final = 1.0
"""Requests of a killed attempt may still arrive: the end of a log counts when it has not moved for this long."""
TARGET: Final = "_kbroker_target"
"""The column with the target partition."""
RESULT: Final = "partition int, before bigint, written bigint"
COUNTS: Final = pa.schema([("partition", pa.int32()), ("before", pa.int64()), ("written", pa.int64())])
"""RESULT in Arrow's words."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task needs besides its rows. Shape: bases by target partition."""

    client: Mapping[str, Any] = field(repr=False)
    target: str
    target_id: UUID
    bases: Mapping[int, int]
    codec: Codec
    batch_bytes: int


class Row(NamedTuple):
    """A record with its source position."""

    target: int
    partition: int
    offset: int
    record: Record


def replay_rows(batches: Iterator[pa.RecordBatch], assignment: Assignment) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task. Returns for each partition how many existed before and how many were written."""
    done = []
    with closing(TargetClient(assignment.client)) as client:
        for index, rows in groupby(_rows(batches), key=attrgetter("target")):
            partition = _Partition(client, assignment, index)
            for row in rows:
                partition.take(row)
            done.append(partition.finish())
    yield pa.RecordBatch.from_pylist(done, schema=COUNTS)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for target, partition, offset, timestamp_ms, key, value, headers in zip(
            *(columns[name] for name in (TARGET, "partition", "offset", "_kbroker_ms", "key", "value", "headers")),
            strict=True,
        ):
            pairs = tuple((each["key"], each["value"]) for each in headers or ())
            yield Row(target, partition, offset, Record(offset, timestamp_ms, key, value, pairs))


class _Partition:
    def __init__(self, client: TargetClient, assignment: Assignment, index: int) -> None:
        self._index = index
        self._client = client
        self._assignment = assignment
        self._partition: Partition = (assignment.target, index)
        self._base = assignment.bases[index]
        end = self._settled_end()
        self._before = end - self._base
        if self._before < 0:
            raise ReplayConflict(
                f"the log ends at offset {end}, which is lower than when the replay began",
                remedy="records were lost: replay into an empty topic with another --job-id",
                at=(assignment.target, index),
                offset=self._base,
            )
        self._seen = 0
        self._writer = PartitionWriter(client, self._partition, end, assignment.codec, assignment.batch_bytes)

    def _settled_end(self) -> int:
        end = self._end()
        while end > self._base:
            Event().wait(SETTLED_SECONDS)
            again = self._end()
            if again == end:
                break
            end = again
        return end

    def _end(self) -> int:
        return self._client.offsets({self._partition: LATEST})[self._partition].offset

    def take(self, row: Row) -> None:
        """Write the next row, unless an earlier attempt wrote it."""
        self._seen += 1
        if self._seen == self._before:
            self._compare(row)
        elif self._seen > self._before:
            self._writer.write(row.record, source_offset=row.offset)

    def _compare(self, row: Row) -> None:
        at = self._base + self._before - 1
        found = self._client.record_at(self._assignment.target_id, self._partition, at)
        if found is None:
            raise ReplayConflict(
                "the last written record cannot be read back: it was compacted or has expired",
                remedy="give the target retention.ms=-1 and cleanup.policy=delete until the replay is done, and replay "
                "into an empty topic with another --job-id",
                at=(self._assignment.target, self._index),
                offset=at,
            )
        if found._replace(offset=-1) != row.record._replace(offset=-1):
            what = f"its record differs from the source's partition {row.partition} at offset {row.offset}"
            raise foreign_writer(self._partition, at, what)

    def finish(self) -> dict[str, int]:
        """Write the last rows. Errors: ReplayConflict if the log has more records than the source."""
        if self._seen < self._before:
            what = f"the log has {self._before} records since the replay began, but the source has only {self._seen}"
            raise foreign_writer(self._partition, self._base + self._seen, what)
        self._writer.flush()
        return {"partition": self._index, "before": self._before, "written": self._writer.written}
