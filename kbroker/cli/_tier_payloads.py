"""The records of `__remote_log_metadata` as text, in the format of Kafka's classes, which have no JSON form.

Error messages are Kafka's too, so that dumps of damaged logs can also be compared.

Source: RemoteLogMetadataSerde, AbstractApiMessageSerde and the classes of org.apache.kafka.server.log.remote.storage of
Apache Kafka 4.3.1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from kbroker.tiered.api import RemoteLogSegmentState
from wire.codec import decode, encode
from wire.errors import Malformed
from wire.record_batch import Record
from wire.schema import schema_of
from wire.stored import tiered
from wire.stored.frame import FRAME_VERSION, record_types
from wire.types import uuid_to_text
from wire.varint import decode_uvarint

_TYPES: Final = record_types(tiered)
_MAX_SHORT: Final = 0x7FFF


class RemotePartitionDeleteState(IntEnum):
    """The states in the deletion of a whole partition. No broker writes such records so far."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


def event_text(record: Record) -> str:
    """A record's value as text. Errors: Malformed, with Kafka's message."""
    if record.value is None:
        raise Malformed("a record without a value")
    number, record_version, start = _read_frame(record.value)
    cls, body = _TYPES[number], record.value[start:]
    try:
        if record_version not in schema_of(cls).versions:
            raise Malformed(f"version {record_version}")
        event: Any = decode(cls, record_version, body)
    except Malformed as error:
        raise Malformed(f"Failed to deserialize record with type {number}") from error
    surplus = len(body) - len(encode(event, record_version))
    if surplus > 0:
        raise Malformed(f"Found {surplus} byte(s) of garbage after {number}")
    text: str = _TEXTS[cls](event)
    return text


def _read_frame(value: bytes) -> tuple[int, int, int]:
    """The record's type and version, and the position of its body."""
    version, at = _read_number(value, 0, "frame version")
    if version == 0:
        raise Malformed(
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release "
            "of KRaft in 2.8 to newer versions are not supported."
        )
    if version != FRAME_VERSION:
        raise Malformed(
            f"Could not deserialize metadata record due to unknown frame version {version}"
            f"(only frame version {FRAME_VERSION} is supported)"
        )
    number, at = _read_number(value, at, "type")
    record_version, at = _read_number(value, at, "version")
    if number not in _TYPES:
        raise Malformed(f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {number}")
    return number, record_version, at


def _read_number(value: bytes, at: int, what: str) -> tuple[int, int]:
    try:
        number, at = decode_uvarint(value, at)
    except (IndexError, Malformed) as error:
        raise Malformed(f"Error while reading {what}") from error
    if number > _MAX_SHORT:
        raise Malformed(f"Value for {what} was too large.")
    return number, at


def _metadata_text(event: tiered.RemoteLogSegmentMetadataRecord) -> str:
    _check(event)
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={_segment_id(event.remote_log_segment_id)}, "
        f"startOffset={event.start_offset}, endOffset={event.end_offset}, brokerId={event.broker_id}, "
        f"maxTimestampMs={event.max_timestamp_ms}, eventTimestampMs={event.event_timestamp_ms}, "
        f"{_rest(event)}"
    )


def _update_text(event: tiered.RemoteLogSegmentMetadataUpdateRecord) -> str:
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_segment_id(event.remote_log_segment_id)}, "
        f"customMetadata={_custom(event.custom_metadata)}, "
        f"state={_state(event.remote_log_segment_state, RemoteLogSegmentState)}, "
        f"eventTimestampMs={event.event_timestamp_ms}, brokerId={event.broker_id}}}"
    )


def _delete_text(event: tiered.RemotePartitionDeleteMetadataRecord) -> str:
    return (
        f"RemotePartitionDeleteMetadata{{topicPartition={_partition(event.topic_id_partition)}, "
        f"state={_state(event.remote_partition_delete_state, RemotePartitionDeleteState)}, "
        f"eventTimestampMs={event.event_timestamp_ms}, brokerId={event.broker_id}}}"
    )


def _snapshot_text(event: tiered.RemoteLogSegmentMetadataSnapshotRecord) -> str:
    if not event.segment_leader_epochs:
        raise Malformed("segmentLeaderEpochs can not be null or empty")
    return (
        f"RemoteLogSegmentMetadataSnapshot{{segmentId={uuid_to_text(event.segment_id)}, "
        f"startOffset={event.start_offset}, endOffset={event.end_offset}, maxTimestampMs={event.max_timestamp_ms}, "
        f"{_rest(event)}"
    )


_TEXTS: Final[dict[type, Any]] = {
    tiered.RemoteLogSegmentMetadataRecord: _metadata_text,
    tiered.RemoteLogSegmentMetadataUpdateRecord: _update_text,
    tiered.RemotePartitionDeleteMetadataRecord: _delete_text,
    tiered.RemoteLogSegmentMetadataSnapshotRecord: _snapshot_text,
}


def _check(event: tiered.RemoteLogSegmentMetadataRecord) -> None:
    """The checks in the constructor of Kafka's class, in its order."""
    _state(event.remote_log_segment_state, RemoteLogSegmentState)
    if event.start_offset < 0:
        raise Malformed(
            f"Unexpected start offset = {event.start_offset}. StartOffset for a remote segment cannot be negative"
        )
    if event.end_offset < event.start_offset:
        raise Malformed(
            f"Unexpected end offset = {event.end_offset}. EndOffset for a remote segment cannot be less than "
            f"startOffset = {event.start_offset}"
        )
    if not event.segment_leader_epochs:
        raise Malformed("segmentLeaderEpochs can not be null or empty")


def _rest(event: tiered.RemoteLogSegmentMetadataRecord | tiered.RemoteLogSegmentMetadataSnapshotRecord) -> str:
    """The end of the text, which two classes share."""
    epochs = {entry.leader_epoch: entry.offset for entry in event.segment_leader_epochs}
    return (
        f"segmentLeaderEpochs={{{', '.join(f'{epoch}={offset}' for epoch, offset in sorted(epochs.items()))}}}, "
        f"segmentSizeInBytes={event.segment_size_in_bytes}, customMetadata={_custom(event.custom_metadata)}, "
        f"state={_state(event.remote_log_segment_state, RemoteLogSegmentState)}, "
        f"txnIdxEmpty={str(event.txn_index_empty).lower()}}}"
    )


def _state(number: int, states: type[IntEnum]) -> str:
    try:
        return states(number).name
    except ValueError as error:
        # Kafka's class for a partition's deletion has the message "null".
        raise Malformed("null" if states is RemotePartitionDeleteState else "state can not be null") from error


def _partition(entry: tiered.TopicIdPartitionEntry) -> str:
    return f"{uuid_to_text(entry.id)}:{entry.name}-{entry.partition}"


def _segment_id(entry: tiered.RemoteLogSegmentIdEntry) -> str:
    partition = _partition(entry.topic_id_partition)
    return f"RemoteLogSegmentId{{topicIdPartition={partition}, id={uuid_to_text(entry.id)}}}"


def _custom(data: bytes | None) -> str:
    return "Optional.empty" if data is None else f"Optional[CustomMetadata{{{len(data)} bytes}}]"
