"""Control records: transaction markers and the records of the metadata quorum.

Source: ControlRecordType and ControlRecordUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from wire.codec import decode
from wire.errors import Malformed
from wire.record_batch import Record, build_batch
from wire.schema import schema_of
from wire.stored import control
from wire.stored.frame import decode_value

_KEY: Final = struct.Struct(">hh")
_END_TXN_MARKER: Final = struct.Struct(">hi")
_QUORUM_RECORDS: Final[dict[int, tuple[str, type[Any]]]] = {
    2: ("LeaderChange", control.LeaderChangeMessage),
    3: ("SnapshotHeader", control.SnapshotHeaderRecord),
    4: ("SnapshotFooter", control.SnapshotFooterRecord),
    5: ("KRaftVersion", control.KRaftVersionRecord),
    6: ("KRaftVoters", control.VotersRecord),
}


def marker_batch(
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    is_log_append_time: bool = False,
) -> bytes:
    """The control batch that ends a transaction, with the bytes that Kafka writes."""
    record = Record(
        timestamp=timestamp_ms, key=_KEY.pack(0, is_commit), value=_END_TXN_MARKER.pack(0, coordinator_epoch)
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        log_append_time=timestamp_ms if is_log_append_time else None,
    )


class ControlRecord(NamedTuple):
    """A control record: the name and number of its type, and its value; message is None for unknown types."""

    kind: str
    type_number: int
    message: Any
    version: int


def read_control(record: Record) -> ControlRecord:
    """Decode a control record. Raises Malformed if the key or value cannot be decoded."""
    if record.key is None or len(record.key) < _KEY.size:
        raise Malformed("a control record has no type")
    number: int = _KEY.unpack_from(record.key)[1]
    value = record.value or b""
    if number in (0, 1):
        marker = decode_value(control.EndTxnMarker, value)
        return ControlRecord("COMMIT" if number else "ABORT", number, marker, 0)
    if number not in _QUORUM_RECORDS:
        return ControlRecord("UNKNOWN", number, None, 0)
    name, cls = _QUORUM_RECORDS[number]
    # The version is the first field of the value, so it is read before decoding.
    version = int.from_bytes(value[:2], "big", signed=True)
    if version not in schema_of(cls).versions:
        raise Malformed(f"{cls.__name__} version {version} is unknown")
    return ControlRecord(name, number, decode(cls, version, value), version)
