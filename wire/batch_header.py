"""The header of a record batch of format 2: 61 bytes before the records, big endian.

     0  base_offset int64             21 attributes int16          43 producer_id int64
     8  batch_length int32 = size-12  23 last_offset_delta int32   51 producer_epoch int16
    12  partition_leader_epoch int32  27 base_timestamp int64      53 base_sequence int32
    16  magic int8                    35 max_timestamp int64       57 record_count int32
    17  crc uint32 of bytes 21..end                                61 records, compressed as one block

    attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 base_timestamp is a delete horizon

base_offset and partition_leader_epoch are outside the CRC, because each broker sets them.

Source: KIP-98, DefaultRecordBatch of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, calcsize
from typing import Final

_FORMATS: Final = {
    "base_offset": "q",
    "batch_length": "i",
    "partition_leader_epoch": "i",
    "magic": "b",
    "crc": "I",
    "attributes": "h",
    "last_offset_delta": "i",
    "base_timestamp": "q",
    "max_timestamp": "q",
    "producer_id": "q",
    "producer_epoch": "h",
    "base_sequence": "i",
    "record_count": "i",
}
_LAYOUT: Final = ">" + "".join(_FORMATS.values())
HEADER: Final = Struct(_LAYOUT)
_unpack: Final = HEADER.unpack_from
HEADER_SIZE: Final = HEADER.size
POSITIONS: Final = {name: calcsize(_LAYOUT[: 1 + at]) for at, name in enumerate(_FORMATS)}
FRAME_SIZE: Final = 12  # base_offset and batch_length; batch_length does not include them
CRC_START: Final = POSITIONS["attributes"]  # the CRC covers everything from here
EPOCH_AND_MAGIC: Final = Struct(">" + _FORMATS["partition_leader_epoch"] + _FORMATS["magic"])
"""The two fields at the position of partition_leader_epoch."""

MAGIC: Final = 2
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
KNOWN_BITS: Final = 0x7F
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 0x7FFF_FFFF


@dataclass(init=False, repr=False, eq=False, slots=True)
class BatchHeader:
    """The fields of a header, read at `position` of `buffer`.

    Reading them takes about a microsecond. Errors: struct.error if the buffer ends within the header.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: bytes | bytearray | memoryview, position: int = 0) -> None:
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _unpack(buffer, position)

    @property
    def size(self) -> int:
        """Of the whole batch, in bytes."""
        return self.batch_length + FRAME_SIZE

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; 2147483647 is followed by 0."""
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE if self.base_sequence >= 0 else NO_SEQUENCE

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp is the time from which compaction may drop this batch's tombstones."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def is_plausible(self) -> bool:
        """Whether this can be a header; only the CRC shows whether the batch is intact."""
        return self.magic == MAGIC and self.batch_length >= HEADER_SIZE - FRAME_SIZE and self.last_offset_delta >= 0


def header_struct(**formats: str) -> Struct:
    """A Struct of some fields of a header in their order, each with its own format; it skips the others.

    For loops that run once for each batch. `I` makes a negative value too large; `5s` for partition_leader_epoch takes
    the magic along, so that one comparison finds a change of either.
    """
    layout, end = ">", 0
    for name, one in formats.items():
        layout += f"{POSITIONS[name] - end}x{one}"
        end = POSITIONS[name] + calcsize(">" + one)
    return Struct(layout)
