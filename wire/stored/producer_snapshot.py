"""A producer snapshot file, `<20-digit offset>.snapshot`: version (int16, not part of this body), checksum, entries."""

from wire.schema import stored, struct
from wire.types import int16, int32, int64, uint32


@struct
class ProducerEntry:
    producer_id: int64
    epoch: int16
    last_sequence: int32
    last_offset: int64
    offset_delta: int32
    timestamp: int64
    coordinator_epoch: int32
    current_txn_first_offset: int64


@stored(versions="1", flexible="none")
class ProducerSnapshot:
    crc: uint32
    producer_entries: list[ProducerEntry]
