"""The encoding of metadata records: record versions, batches, and control records.

A metadata batch is a normal v2 batch without a producer; its partition_leader_epoch is the quorum epoch. A record has
no key. Its value is a frame: version 1, the record type, the record version, the body. A control batch has one record,
whose key is two int16s: version 0 and the type.

Source: MetadataRecordSerde, MetadataVersion, ControlRecordUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Record
from wire import record_batch
from wire.codec import decode, encode
from wire.errors import Malformed
from wire.record_batch import RecordBatch, build_batch
from wire.stored import metadata as stored
from wire.stored.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from wire.stored.frame import decode_record, encode_record, record_types

LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
_QUORUM_TYPES: Final[Mapping[int, type[Any]]] = {5: KRaftVersionRecord, 6: VotersRecord}
"""The control records that are a part of the image."""

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
    """The metadata records of a batch; of a control batch those about the quorum. Raises UnusableMetadata."""
    try:
        if batch.is_control:
            return [record for record in map(_quorum_record, batch.records()) if record is not None]
        return [decode_value(record.value) for record in batch.records()]
    except Malformed as error:
        raise UnusableMetadata(f"the metadata batch at offset {batch.base_offset} cannot be read: {error}") from error


def _quorum_record(record: record_batch.Record) -> Record | None:
    cls = _QUORUM_TYPES.get(_control_type_of(record) or 0)
    return None if cls is None else decode(cls, 0, memoryview(record.value or b""))


def leader_change_batch(*, voter_id: int, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """The batch that the leader of a single-voter quorum appends at the start of its epoch."""
    voters = [LeaderChangeVoter(voter_id=voter_id)]
    message = LeaderChangeMessage(version=0, leader_id=voter_id, voters=voters, granting_voters=voters)
    return _control_batch((LEADER_CHANGE, message), base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms)


def snapshot_header_batch(
    *, last_contained_log_timestamp: int, epoch: int, timestamp_ms: int, quorum: Sequence[Record] = ()
) -> bytes:
    """The first batch of a snapshot file, at offset 0; `quorum` are the control records about the quorum, if any."""
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_contained_log_timestamp)
    types = {cls: number for number, cls in _QUORUM_TYPES.items()}
    contents = [(SNAPSHOT_HEADER, header), *((types[type(record)], record) for record in quorum)]
    return _control_batch(*contents, base_offset=0, epoch=epoch, timestamp_ms=timestamp_ms)


def snapshot_footer_batch(*, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    """The last batch of a snapshot file; without it the file is incomplete."""
    message = SnapshotFooterRecord(version=0)
    return _control_batch((SNAPSHOT_FOOTER, message), base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms)


def _control_batch(*contents: tuple[int, Any], base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    found = (
        record_batch.Record(timestamp=timestamp_ms, key=_CONTROL_KEY.pack(0, control_type), value=encode(message, 0))
        for control_type, message in contents
    )
    return build_batch(found, base_offset=base_offset, partition_leader_epoch=epoch, is_control=True)


def control_type(batch: RecordBatch) -> int | None:
    """The type of a control batch's first record; None for a data batch or an invalid key. Raises Malformed."""
    if not batch.is_control:
        return None
    return next((number for record in batch.records() if (number := _control_type_of(record)) is not None), None)


def _control_type_of(record: record_batch.Record) -> int | None:
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        return None
    return int(_CONTROL_KEY.unpack_from(record.key)[1])
