"""A piece is an offset range and where its bytes are; a task of a Spark job reads one or more pieces.

The driver plans pieces (`kbroker.spark.plan`), executors read them. The pieces of a partition tile the planned range:
each offset is in exactly one piece, and its record becomes a row of that piece.

Pieces are pickled and sent to the workers, so they contain only values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kbroker.spark.positions import Partition
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition


class Aborted(NamedTuple):
    """An aborted transaction. Units: last_offset is that of its marker, or beyond the end of all pieces."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """The records of [start_offset, end_offset) in one finished segment of the tier.

    Units  end_offset is exclusive, unlike the segment's own; positions are bytes in the segment, end_position exclusive
    Note   start_position is that of a batch whose base_offset is at or before start_offset, from the offset index; 0 is
           always valid. end_position is where the piece is expected to end, None if unknown. It only limits read-ahead:
           reading continues after it until end_offset is reached.
    Note   records of the transactions in `aborted` are left out
    """

    segment: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    start_position: int = 0
    end_position: int | None = None
    aborted: tuple[Aborted, ...] = ()

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment.remote_log_segment_id.topic_id_partition

    @property
    def topic_partition(self) -> Partition:
        return self.topic_id_partition.topic, self.topic_id_partition.partition


@dataclass(frozen=True, slots=True)
class TailPiece:
    """The records of [start_offset, end_offset) that are fetched from a broker: the tier does not have all of them.

    Units  end_offset is exclusive
    Note   is_committed_only: records of aborted transactions are left out
    """

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    end_offset: int
    is_committed_only: bool = False

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    @property
    def topic_partition(self) -> Partition:
        return self.topic, self.partition


Piece = SegmentPiece | TailPiece
Task = tuple[Piece, ...]
"""What a task reads: pieces of one partition, in the order of their offsets."""
