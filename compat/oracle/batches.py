"""Record batches of format 2, with correct or wrong values in any field. Independent of `wire`, like this whole
package.

Source: the table "Record batch v2 layout" of Kafka's documentation of its message format.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import crc32c

NO_TIMESTAMP = -1
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def varint(value: int) -> bytes:
    """A zigzag varint of up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass
class Item:
    """One record of a batch; `delta` is its offset delta (None: its place in the batch)."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_delta: int = 0
    delta: int | None = None
    header_count: int | None = None

    def encode(self, place: int) -> bytes:
        """The record with its length."""
        body = b"\x00" + varint(self.timestamp_delta) + varint(place if self.delta is None else self.delta)
        body += _sized(self.key) + _sized(self.value)
        body += varint(len(self.headers) if self.header_count is None else self.header_count)
        for name, value in self.headers:
            body += _sized(name.encode()) + _sized(value)
        return varint(len(body)) + body


@dataclass
class Batch:
    """A batch; a field that is None is computed, any other value is written unchanged."""

    items: Sequence[Item] = field(default_factory=lambda: [Item()])
    base_offset: int = 0
    batch_length: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    codec: int = 0
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = None
    body: bytes | None = None

    def encode(self) -> bytes:
        """The bytes of the batch."""
        body = self.body
        if body is None:
            body = b"".join(item.encode(place) for place, item in enumerate(self.items))
            body = gzip.compress(body, mtime=0) if self.codec == GZIP else body
        count = len(self.items)
        latest = self.base_timestamp + max((item.timestamp_delta for item in self.items), default=0)
        rest = struct.pack(
            ">hiqqqhii",
            self.attributes | self.codec,
            count - 1 if self.last_offset_delta is None else self.last_offset_delta,
            self.base_timestamp,
            latest if self.max_timestamp is None else self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            count if self.record_count is None else self.record_count,
        )
        rest += body
        crc = crc32c.crc32c(rest) if self.crc is None else self.crc
        length = len(rest) + 9 if self.batch_length is None else self.batch_length
        return struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, crc) + rest


def batch_of(*values: bytes, base_timestamp: int = 1_700_000_000_000) -> bytes:
    """A plain batch of some values."""
    return Batch([Item(value) for value in values], base_timestamp=base_timestamp).encode()
