"""The content of the tier according to `__remote_log_metadata`: the last state of every segment that was ever started.

The records have Kafka's format, so this works on Apache Kafka's topic as well. As in the broker, an unreadable record
is counted and skipped, and so is an invalid state transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.tiered.api import FINISHED, STARTED, RemoteLogSegmentMetadata
from kbroker.tiered.lifecycle import NEXT_STATES, MetadataEvent, updated
from kbroker.tiered.metadata_topic import decode_event
from wire.errors import Malformed
from wire.types import uuid_to_text

METADATA_TOPIC: Final = REMOTE_LOG_METADATA_TOPIC

Partition = tuple[str, int]


@dataclass(slots=True)
class Catalogue:
    """The segments by their ids.

    Shape  copied are the ids of segments whose copy was finished once, whatever their state is now
    Shape  unreadable counts records that cannot be read, strays those with an invalid transition or an unknown segment;
           is_whole is False if the beginning of the topic was deleted, so that segments may be missing here
    """

    segments: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    copied: set[UUID] = field(default_factory=set)
    unreadable: int = 0
    strays: int = 0
    is_whole: bool = True

    def replay(self, value: bytes | None) -> None:
        """Apply the value of the topic's next record."""
        try:
            if value is None:
                raise Malformed("a record without a value")
            event = decode_event(value)
        except Malformed:
            self.unreadable += 1
            return
        self.replay_event(event)

    def replay_event(self, event: MetadataEvent) -> None:
        """Apply the topic's next event."""
        known = self.segments.get(event.remote_log_segment_id.id)
        if isinstance(event, RemoteLogSegmentMetadata):
            if event.state is not STARTED or (known is not None and known.state is not STARTED):
                self.strays += 1
            else:
                self.segments[event.remote_log_segment_id.id] = event
        elif known is None or event.state not in NEXT_STATES[known.state]:
            self.strays += 1
        else:
            self.segments[event.remote_log_segment_id.id] = updated(known, event)
            if event.state is FINISHED:
                self.copied.add(event.remote_log_segment_id.id)

    def copy(self) -> Catalogue:
        """A copy of the current state, independent of later events."""
        return replace(self, segments=dict(self.segments), copied=set(self.copied))

    def warnings(self) -> Iterator[str]:
        """Why the catalogue may be incomplete."""
        if self.unreadable:
            yield f"{self.unreadable} records of the metadata topic cannot be read"
        if self.strays:
            yield f"{self.strays} records of the metadata topic contradict earlier ones and are ignored"
        if not self.is_whole:
            yield "the beginning of the metadata topic was deleted; there may be more segments"

    def of(self, partitions: Iterable[Partition] | None) -> list[RemoteLogSegmentMetadata]:
        """The segments of some partitions, or of all, sorted by partition and offset."""
        wanted = None if partitions is None else set(partitions)
        chosen = [each for each in self.segments.values() if wanted is None or partition_of(each) in wanted]
        return sorted(chosen, key=_order)

    def segment_at(self, partition: Partition, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished segment that contains an offset. If several leaders copied the offset, the segment of the newest
        leader.
        """
        holding = [
            each
            for each in self.of([partition])
            if each.state is FINISHED and each.start_offset <= offset <= each.end_offset
        ]
        return max(holding, key=lambda each: (epoch_at(each, offset), each.event_timestamp_ms), default=None)


def partition_of(segment: RemoteLogSegmentMetadata) -> Partition:
    """Topic and partition number of a segment."""
    found = segment.remote_log_segment_id.topic_id_partition
    return found.topic, found.partition


def name_of(segment: RemoteLogSegmentMetadata) -> str:
    """A segment's name for messages."""
    topic, partition = partition_of(segment)
    return f"{topic}-{partition} {segment.start_offset}-{segment.end_offset} {id_text(segment)}"


def id_text(segment: RemoteLogSegmentMetadata) -> str:
    """A segment's id in Kafka's text form."""
    return uuid_to_text(segment.remote_log_segment_id.id)


def epoch_at(segment: RemoteLogSegmentMetadata, offset: int) -> int:
    """The leader epoch in which an offset of a segment was written."""
    return max((epoch for epoch, start in segment.segment_leader_epochs if start <= offset), default=-1)


def _order(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    topic_id = segment.remote_log_segment_id.topic_id_partition.topic_id
    return (*partition_of(segment), topic_id, segment.start_offset, segment.event_timestamp_ms)


def as_json(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    """A segment as a JSON object."""
    topic_id, topic, partition = segment.remote_log_segment_id.topic_id_partition
    return {
        "topic": topic,
        "topic_id": uuid_to_text(topic_id),
        "partition": partition,
        "segment_id": id_text(segment),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "leader_epochs": [{"leader_epoch": epoch, "start_offset": at} for epoch, at in segment.segment_leader_epochs],
        "state": segment.state.name,
        "size_bytes": segment.segment_size_in_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker_id": segment.broker_id,
        "custom_metadata": None if segment.custom_metadata is None else segment.custom_metadata.hex(),
        "txn_index_empty": segment.txn_index_empty,
    }
