"""The encoding of metadata records: record versions, batches, and control records.

A metadata batch is a normal v2 batch without a producer; its partition_leader_epoch is the quorum epoch. A record has
no key. Its value is a frame: version 1, the record type, the record version, the body. A control batch has one record,
whose key is two int16s: version 0 and the type.

Source: MetadataRecordSerde, MetadataVersion, ControlRecordUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Record
from wire import record_batch
from wire.codec import encode
from wire.errors import Malformed
from wire.record_batch import RecordBatch, build_batch
from wire.stored import metadata as stored
from wire.stored.control import (
    LeaderChangeMessage,
    LeaderChangeVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from wire.stored.frame import decode_record, encode_record, record_types

LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4

MAX_BATCH_BYTES: Final = 8 << 20
"""The largest batch that Kafka's readers of the metadata log accept."""

RECORD_OVERHEAD_BYTES: Final = 24
"""An upper bound of what a batch adds to each value: length, attributes, deltas, key, value length, headers."""

_TYPES: Final = record_types(stored)
_CONTROL_KEY = struct.Struct(">hh")

_DIRECTORIES_LEVEL = 17  # 3.7-IV2
_ELR_LEVEL = 23  # 4.0-IV1
_CORDONED_LEVEL = 30  # 4.3-IV0
_REGISTRATION_LEVELS = ((_CORDONED_LEVEL, 4), (_DIRECTORIES_LEVEL, 3), (8, 2), (7, 1))


def record_version(record: Record, metadata_version: int) -> int:
    """The version of a record at a metadata.version level."""
    if isinstance(record, stored.PartitionRecord | stored.PartitionChangeRecord):
        if metadata_version >= _ELR_LEVEL:
            return 2
        return 1 if metadata_version >= _DIRECTORIES_LEVEL else 0
    if isinstance(record, stored.RegisterBrokerRecord):
        return next((version for level, version in _REGISTRATION_LEVELS if metadata_version >= level), 0)
    if isinstance(record, stored.BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    return 0


def encode_value(record: Record, metadata_version: int) -> bytes:
    """Encode a record in a frame."""
    return encode_record(record, record_version(record, metadata_version))


def decode_value(value: bytes | None) -> Record:
    """Decode the record in a frame. Raises UnusableMetadata for unknown types and versions."""
    try:
        return decode_record(value or b"", _TYPES)[0]
    except Malformed as error:
        raise UnusableMetadata(f"a metadata record cannot be read: {error}") from error


def data_batch(values: Iterable[bytes], *, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """A batch of framed records."""
    return build_batch(
        (record_batch.Record(timestamp=timestamp_ms, value=value) for value in values),
        base_offset=base_offset,
        partition_leader_epoch=epoch,
    )


def size(values: list[bytes]) -> int:
    """An upper bound of the bytes of these framed records in a batch."""
    return sum(map(len, values)) + RECORD_OVERHEAD_BYTES * len(values)


def split(values: Iterable[bytes], limit: int) -> Iterator[list[bytes]]:
    """Split framed records into batches of at most `limit` bytes; a larger record gets a batch of its own."""
    batch: list[bytes] = []
    used = 0
    for value in values:
        if batch and used + size([value]) > limit:
            yield batch
            batch, used = [], 0
        batch.append(value)
        used += size([value])
    if batch:
        yield batch


def batch_records(batch: RecordBatch) -> list[Record]:
    """The metadata records of a batch; empty for a control batch. Raises UnusableMetadata."""
    if batch.is_control:
        return []
    try:
        return [decode_value(record.value) for record in batch.records()]
    except Malformed as error:
        raise UnusableMetadata(f"the metadata batch at offset {batch.base_offset} cannot be read: {error}") from error


def leader_change_batch(*, voter_id: int, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """The batch that the leader of a single-voter quorum appends at the start of its epoch."""
    voters = [LeaderChangeVoter(voter_id=voter_id)]
    message = LeaderChangeMessage(version=0, leader_id=voter_id, voters=voters, granting_voters=voters)
    return _control_batch(LEADER_CHANGE, message, base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms)


def snapshot_header_batch(*, last_contained_log_timestamp: int, epoch: int, timestamp_ms: int) -> bytes:
    """The first batch of a snapshot file, at offset 0."""
    message = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_contained_log_timestamp)
    return _control_batch(SNAPSHOT_HEADER, message, base_offset=0, epoch=epoch, timestamp_ms=timestamp_ms)


def snapshot_footer_batch(*, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """The last batch of a snapshot file; without it the file is incomplete."""
    message = SnapshotFooterRecord(version=0)
    return _control_batch(SNAPSHOT_FOOTER, message, base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms)


def _control_batch(control_type: int, message: Any, *, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    record = record_batch.Record(
        timestamp=timestamp_ms, key=_CONTROL_KEY.pack(0, control_type), value=encode(message, 0)
    )
    return build_batch([record], base_offset=base_offset, partition_leader_epoch=epoch, is_control=True)


def control_type(batch: RecordBatch) -> int | None:
    """The type of a control batch's record; None for a data batch or an invalid key. Raises Malformed."""
    if not batch.is_control:
        return None
    for record in batch.records():
        if record.key is not None and len(record.key) >= _CONTROL_KEY.size:
            return int(_CONTROL_KEY.unpack_from(record.key)[1])
    return None
