"""Segments in a directory tier from a test's batches, and the rows that are expected of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.segment_reading import read_segment
from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from kbroker.tiered.layout import SEGMENT, object_name
from kbroker.tiered.local import LocalRemoteStorage
from wire.record_batch import RecordBatch, batches

PARTITION = TopicIdPartition(UUID(int=7), "orders", 3)
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

Row = tuple[Any, ...]


class Tier:
    """A directory tier for one test. Shape: root is its directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalRemoteStorage()
        self.storage.configure({"dir": str(root / "tier")})
        self._copies = 0

    def add(self, log: bytes, *, end_offset: int | None = None) -> RemoteLogSegmentMetadata:
        """Store a segment of these bytes."""
        found = list(batches(log))
        start = found[0].base_offset
        end = found[-1].last_offset if end_offset is None else end_offset
        self._copies += 1
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(PARTITION, UUID(int=self._copies)),
            start_offset=start,
            end_offset=end,
            max_timestamp_ms=0,
            broker_id=1,
            event_timestamp_ms=0,
            segment_leader_epochs=((0, start),),
            segment_size_in_bytes=len(log),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        path = self.path(segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(log)  # only the object: these tests read nothing else of a copy, and need no durability
        return segment

    def path(self, segment: RemoteLogSegmentMetadata) -> Path:
        """The file of the segment's log."""
        return self.root / "tier" / object_name(segment, SEGMENT)

    def piece(
        self, log: bytes, start: int | None = None, end: int | None = None, position: int = 0, **more: Any
    ) -> SegmentPiece:
        """A piece of a new segment with these bytes; the whole segment unless offsets are given."""
        segment = self.add(log, **more)
        return SegmentPiece(
            segment,
            segment.start_offset if start is None else start,
            segment.end_offset + 1 if end is None else end,
            position,
        )

    def rows(self, piece: SegmentPiece, columns: Sequence[str] = ALL, **options: Any) -> list[Row]:
        """The rows of a piece."""
        return rows_of(read_segment(self.storage, piece, columns, **options))


def rows_of(made: Iterable[pa.RecordBatch]) -> list[Row]:
    """Rows as tuples, timestamps in microseconds."""
    rows: list[Row] = []
    for batch in made:
        batch.validate(full=True)
        plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
        rows += zip(*(column.to_pylist() for column in plain), strict=True)
    return rows


def expected_rows(found: Iterable[RecordBatch], start: int, end: int) -> list[Row]:
    """The batches' records as rows, by wire's decoder."""
    return [
        (
            record.key,
            record.value,
            PARTITION.topic,
            PARTITION.partition,
            record.offset,
            record.timestamp * 1000,
            int(batch.is_log_append_time),
            [{"key": name, "value": value} for name, value in record.headers] or None,
        )
        for batch in found
        if not batch.is_control
        for record in batch.records()
        if start <= record.offset < end
    ]
