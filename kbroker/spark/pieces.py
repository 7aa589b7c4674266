"""What one task of a Spark job reads: a range of offsets, and where its bytes are.

The driver makes pieces (`kbroker.spark.plan`), executors read them. Together the pieces of a partition tile the range
that was planned: each offset is in exactly one of them, and a record is a row of the piece that its offset is in.

Pieces travel pickled from the driver to the workers, so they hold values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """The records of [start_offset, end_offset) in one finished segment of the tier.

    Units  end_offset is exclusive, unlike the segment's own; positions are bytes in the segment, end_position exclusive
    Note   start_position is that of a batch whose base_offset is start_offset or before, as the offset index gives it;
           0 is always right. end_position is where all of the piece is expected to have been read, None where nobody
           has looked: it bounds what is read ahead and never decides about a record, since reading goes on behind it
           until end_offset is reached.
    """

    segment: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    start_position: int = 0
    end_position: int | None = None

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment.remote_log_segment_id.topic_id_partition


@dataclass(frozen=True, slots=True)
class TailPiece:
    """The records of [start_offset, end_offset) that are to be fetched from a broker: the tier has not got them all.

    Units  end_offset is exclusive
    """

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    end_offset: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic, self.partition)


Piece = SegmentPiece | TailPiece
