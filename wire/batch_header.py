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
