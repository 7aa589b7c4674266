"""The topic `__remote_log_metadata`: the assignment of user partitions, and its records, byte for byte Kafka's.

Any client may write to the topic, and disks may corrupt data. So an unreadable record is skipped and reported with its
offset and the reason. In Apache Kafka one such record ends tiering until the topic is repaired by hand.

Source  RemoteLogMetadataTopicPartitioner, RemoteLogMetadataSerde, ConsumerTask of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from kbroker.tiered.lifecycle import MetadataEvent
from wire.errors import Malformed
from wire.partitioner import partition_of_key
from wire.record_batch import RecordBatch, batches
from wire.stored import tiered
from wire.stored.frame import decode_record, encode_record

RECORD_VERSION: Final = 0
NO_EPOCH: Final = -1

_SegmentRecord, _UpdateRecord = tiered.RemoteLogSegmentMetadataRecord, tiered.RemoteLogSegmentMetadataUpdateRecord
_TYPES: Final = {0: _SegmentRecord, 1: _UpdateRecord}
_UPDATE_FIELDS: Final = ("broker_id", "event_timestamp_ms", "custom_metadata")
_SEGMENT_FIELDS: Final = (
    *_UPDATE_FIELDS,
    *("start_offset", "end_offset", "max_timestamp_ms", "segment_size_in_bytes", "txn_index_empty"),
)
"""The fields that have the same name in an event and in its record."""

_INT32: Final = 0xFFFF_FFFF
_INT64: Final = 0xFFFF_FFFF_FFFF_FFFF


@lru_cache(1 << 14)
def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """The partition of the topic that has the metadata of a user partition; the topic name does not matter."""
    lsb, msb = partition.topic_id.int & _INT64, partition.topic_id.int >> 64
    value = 1
    for part in (_java_hash(lsb), _java_hash(msb), partition.partition):
        value = (31 * value + part) & _INT32
    return partition_of_key(value.to_bytes(4, "big"), partition_count)


def _java_hash(value: int) -> int:
    """Long.hashCode of 64 bits."""
    return (value ^ (value >> 32)) & _INT32


# --- one record -------------------------------------------------------------------------------------------------------


def encode_event(event: MetadataEvent) -> bytes:
    """The record value of an event; the record's key is null."""
    segment_id, partition = event.remote_log_segment_id, event.remote_log_segment_id.topic_id_partition
    entry = tiered.TopicIdPartitionEntry(name=partition.topic, id=partition.topic_id, partition=partition.partition)
    fields: dict[str, Any] = {
        "remote_log_segment_id": tiered.RemoteLogSegmentIdEntry(topic_id_partition=entry, id=segment_id.id),
        "remote_log_segment_state": event.state,
    }
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return encode_record(_UpdateRecord(**fields, **_same(event, _UPDATE_FIELDS)), RECORD_VERSION)
    fields["segment_leader_epochs"] = [
        tiered.SegmentLeaderEpochEntry(leader_epoch=epoch, offset=offset)
        for epoch, offset in event.segment_leader_epochs
    ]
    return encode_record(_SegmentRecord(**fields, **_same(event, _SEGMENT_FIELDS)), RECORD_VERSION)


def decode_event(value: bytes | memoryview) -> MetadataEvent:
    """The event of a record value. Errors: Malformed for any invalid bytes, and for records that no broker writes."""
    record, _ = decode_record(value, _TYPES)
    entry = record.remote_log_segment_id.topic_id_partition
    partition = TopicIdPartition(entry.id, entry.name, entry.partition)
    segment_id = RemoteLogSegmentId(partition, record.remote_log_segment_id.id)
    try:
        state = RemoteLogSegmentState(record.remote_log_segment_state)
    except ValueError as error:
        raise Malformed(str(error)) from error
    if isinstance(record, _UpdateRecord):
        return RemoteLogSegmentMetadataUpdate(segment_id, state=state, **_same(record, _UPDATE_FIELDS))
    # Kafka reads the entries into a sorted map: their order does not matter, and later duplicates win.
    epochs = {entry.leader_epoch: entry.offset for entry in record.segment_leader_epochs}
    return RemoteLogSegmentMetadata(
        segment_id, state=state, segment_leader_epochs=tuple(sorted(epochs.items())), **_same(record, _SEGMENT_FIELDS)
    )


def _same(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


# --- a piece of the log -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Events:
    """The events of a part of the topic's log.

    Shape  events are (offset, event) in log order; skipped are (first offset, count, reason)
    Shape  next_offset is where to continue reading
    Shape  last_batch is (base_offset, crc) of the last batch that was read, leader_epoch its epoch; they identify a
           position in the log
    """

    next_offset: int
    events: list[tuple[int, MetadataEvent]] = field(default_factory=list)
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    last_batch: tuple[int, int] | None = None
    leader_epoch: int = NO_EPOCH

    def skip_to(self, offset: int, why: str) -> None:
        """Record that nothing before `offset` can be read."""
        if offset > self.next_offset:
            self.skipped.append((self.next_offset, offset - self.next_offset, why))
            self.next_offset = offset


def read_events(
    data: bytes | memoryview, offset: int, *, end_offset: int, partition: int, partition_count: int
) -> Events:
    """The events in [offset, end_offset) of consecutive batches, up to the first damaged one."""
    found = Events(offset)
    for batch in batches(data):
        # The checksum does not cover the base offset.
        if not batch.crc_is_valid() or not batch.base_offset < batch.next_offset <= end_offset:
            break
        if batch.next_offset > found.next_offset:
            found.skip_to(batch.base_offset, "damaged")
            _read_batch(found, batch, partition, partition_count)
    return found


def _read_batch(found: Events, batch: RecordBatch, partition: int, partition_count: int) -> None:
    start = found.next_offset
    found.last_batch, found.leader_epoch = (batch.base_offset, batch.crc), batch.partition_leader_epoch
    if batch.is_control:
        found.next_offset = batch.next_offset  # a transaction marker; the metadata is read uncommitted
        return
    try:
        for record in batch.records():
            if record.offset < start:
                continue
            found.next_offset = record.offset
            try:
                if record.value is None:
                    raise Malformed("a record without a value")
                event = decode_event(record.value)
                expected = metadata_partition(event.remote_log_segment_id.topic_id_partition, partition_count)
                if expected != partition:
                    raise Malformed(f"a record that belongs into partition {expected}")
                found.events.append((record.offset, event))
            except Malformed as error:
                found.skipped.append((record.offset, 1, str(error)))
            found.next_offset = record.offset + 1
    except Malformed as error:
        found.skip_to(batch.next_offset, f"a batch that cannot be read: {error}")
    found.next_offset = batch.next_offset
