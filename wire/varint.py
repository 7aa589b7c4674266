"""Unsigned varints: seven bits per byte, the lowest first, as in Protocol Buffers.

Lengths, counts and tags of flexible versions are varints of at most 5 bytes (KIP-482).
"""

from __future__ import annotations

from typing import Final

from wire.errors import Malformed

Buffer = bytes | bytearray | memoryview

SHORT: Final = tuple(bytes((value,)) for value in range(128))
"""The encodings of 0 to 127."""


def encode_uvarint(value: int) -> bytes:
    """The varint of `value`, which must not be negative."""
    assert value >= 0, f"{value} has no unsigned varint"
    if value < 128:
        return SHORT[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """The varint at `position` and the position after it; IndexError if it is cut, Malformed if it exceeds 32 bits."""
    first = data[position]
    if first < 128:
        return first, position + 1
    return finish_uvarint(data, position + 1, first)


def finish_uvarint(data: Buffer, position: int, first: int) -> tuple[int, int]:
    """Like decode_uvarint, after a first byte that announced more."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise Malformed("a varint of more than 32 bits")
