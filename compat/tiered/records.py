"""Decodes records in batches of format 2 without `wire`: a comparison of two brokers must not share bugs with one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

HEADER_BYTES = 61


class Stored(NamedTuple):
    """One record with its partition position."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def whole_batches(data: bytes) -> Iterator[bytes]:
    """The batches of a Fetch's records, without an incomplete last one, as in clients. Each has its own CRC."""
    position = 0
    while position + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, position + 8)[0]
        if position + size > len(data):
            return
        batch = data[position : position + size]
        wanted = struct.unpack_from(">I", batch, 17)[0]
        assert crc32c.crc32c(batch[21:]) == wanted, f"a damaged batch at offset {base_offset(batch)}"
        yield batch
        position += size


def base_offset(batch: bytes) -> int:
    """The first offset of a batch."""
    return int(struct.unpack_from(">q", batch)[0])


def last_offset(batch: bytes) -> int:
    """The last offset of a batch."""
    return base_offset(batch) + int(struct.unpack_from(">i", batch, 23)[0])


class _Cursor:
    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def sized(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        self.position += size
        return self.data[self.position - size : self.position]


def records(batch: bytes) -> Iterator[Stored]:
    """The records of one uncompressed batch."""
    attributes, _, base_timestamp = struct.unpack_from(">hiq", batch, 21)
    assert attributes & 7 == 0, "a compressed batch"
    (count,) = struct.unpack_from(">i", batch, 57)
    cursor = _Cursor(batch, HEADER_BYTES)
    for _ in range(count):
        end = cursor.varint() + cursor.position
        cursor.position += 1
        timestamp_ms = base_timestamp + cursor.varint()
        offset = base_offset(batch) + cursor.varint()
        key, value = cursor.sized(), cursor.sized()
        cursor.position = end
        yield Stored(offset, timestamp_ms, key, value)
