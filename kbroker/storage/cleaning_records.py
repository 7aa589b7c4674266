"""What the cleaner needs of the records of a batch: their keys, and which are tombstones.

Record objects would cost several times as much as the rest of a pass. `_scan_each` reads the fields one by one.
Adjacent records are often of one size, with keys of one size; each field is then at a constant distance from the next
record's, and `_scan_alike` reads it as a slice of the batch, as `wire.record_columns` does. Without the compiler, that
takes half as long.

A key is represented by itself if it is short, else by its BLAKE2s hash, which is longer than any short key. So two keys
never look the same, and no client can make a key that displaces the record of another key. (Kafka compares MD5 hashes.)

Source  DefaultRecord.readFrom of Apache Kafka 4.3.1
"""

from __future__ import annotations

from hashlib import blake2s
from typing import Final

from mypy_extensions import i64

from wire.errors import Malformed
from wire.record_batch import WideVarint, read_zigzag

SHORT_KEY_BYTES: Final = 31
"""One less than the size of a hash."""

_AT_LEAST: Final = 8  # with fewer records of one size, slices cost more than they save
_AT_ONCE: Final = 64
_HIGH: Final = bytes(range(128, 256))
_LOW: Final = bytes(range(128))
_NULL: Final = 1  # the varint of a length of -1
_IS_COMPILED: Final = not __file__.endswith(".py")


def scan_keys(data: bytes, position: int, end: int, count: int) -> tuple[list[bytes | None], list[int]]:
    """The keys of the `count` records in data[position:end], None for none; the indexes of those without a value.

    Errors  Malformed
    """
    keys: list[bytes | None] = []
    tombstones: list[int] = []
    tries = 0 if _IS_COMPILED else 2
    try:
        while len(keys) < count:
            wanted = count - len(keys)
            after = _scan_alike(data, position, end, wanted, keys) if tries and wanted >= _AT_LEAST else 0
            if not after:
                tries -= tries > 0
                wanted = min(wanted, _AT_ONCE) if tries else wanted
                after = _scan_each(data, position, end, wanted, keys, tombstones)
            position = after
    except (IndexError, WideVarint):
        raise Malformed(f"record {len(keys)} of {count} is cut off") from None
    if position != end or count < 0:
        raise Malformed(f"{end - position} bytes after the last of {count} records")
    return keys, tombstones


def timestamp_deltas(data: bytes, starts: list[int]) -> list[int]:
    """The timestamp deltas of the records that start there, in ms."""
    deltas = []
    for start in starts:
        # Length and delta mostly take one or two bytes, and one.
        at = start + (2 if data[start] < 0x80 else 3)
        zigzag = data[at]
        if zigzag > 0x7F or (data[start] > 0x7F and data[start + 1] > 0x7F):
            zigzag, _ = read_zigzag(data, _timestamp_position(data, start), 64)
        deltas.append((zigzag >> 1) ^ -(zigzag & 1))
    return deltas


def with_timestamp_delta(data: bytes, start: int, end: int, delta: int) -> bytes:
    """The record between two positions, with another timestamp delta."""
    at = _timestamp_position(data, start)
    _, after = read_zigzag(data, at, 64)
    body = data[at - 1 : at] + _varint(delta) + data[after:end]
    return _varint(len(body)) + body


def _timestamp_position(data: bytes, start: int) -> int:
    return read_zigzag(data, start)[1] + 1  # behind the length and the attributes


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ~(value << 1)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _scan_each(  # noqa: PLR0917  (as fast as possible)
    d: bytes, p: i64, stop: i64, count: i64, keys: list[bytes | None], tombstones: list[int]
) -> i64:
    """Scan records one by one; returns where they end."""
    add_key = keys.append
    for _ in range(count):
        b: i64 = d[p]
        p += 1
        if b > 0x7F:
            c: i64 = d[p]
            if c > 0x7F:
                b, p = read_zigzag(d, p - 1)
            else:
                b += (c - 1) << 7
                p += 1
        end = p + (b >> 1)
        if b & 1 or end > stop:
            raise IndexError
        p += 1
        while d[p] > 0x7F:  # the timestamp delta
            p += 1
        p += 1
        while d[p] > 0x7F:  # the offset delta
            p += 1
        p += 1
        b = d[p]
        p += 1
        if b > 0x7F:
            b, p = read_zigzag(d, p - 1)
        if b == _NULL:
            add_key(None)
        else:
            key_end = p + (b >> 1)
            if b & 1 or key_end >= end:
                raise IndexError
            add_key(d[p:key_end] if key_end - p <= SHORT_KEY_BYTES else blake2s(d[p:key_end]).digest())
            p = key_end
        # No other length is odd, so only a null's first byte has the low bit.
        if d[p] & 1:
            tombstones.append(len(keys) - 1)
        if p >= end:
            raise IndexError
        p = end
    return p


def _scan_alike(d: bytes, p: int, stop: int, wanted: int, keys: list[bytes | None]) -> int:
    """Scan adjacent records of one shape, at most `wanted`; returns where they end, 0 if there are too few.

    They agree in size, in the widths of their varints and in the size of the key, and have values.
    """
    length, body = read_zigzag(d, p)
    size = body - p + (length >> 1)
    count = min(wanted, (stop - p) // size)
    if length & 1 or count < _AT_LEAST:
        return 0
    for at in range(p, body):
        count = _prefix(d[at : p + count * size : size], d[at : at + 1])
    timestamp_at = body + 1
    delta_at = read_zigzag(d, timestamp_at, 64)[1]
    key_at = read_zigzag(d, delta_at)[1]
    key_length, key_start = read_zigzag(d, key_at)
    key_size = key_length >> 1
    value_at = key_start + key_size
    if key_length & 1 or value_at >= p + size:
        return 0
    for first, after in ((timestamp_at, delta_at), (delta_at, key_at)):
        for at in range(first, after - 1):
            count = _prefix(d[at : p + count * size : size], _HIGH)
        count = _prefix(d[after - 1 : p + count * size : size], _LOW)
    for at in range(key_at, key_start):
        count = _prefix(d[at : p + count * size : size], d[at : at + 1])
    values = d[value_at : p + count * size : size]
    for null in (b"\x01", b"\x81"):
        if null in values:
            count = min(count, values.index(null))
    if count < _AT_LEAST:
        return 0
    end = p + count * size
    found = [d[at : at + key_size] for at in range(key_start, end, size)]
    keys.extend(found if key_size <= SHORT_KEY_BYTES else [blake2s(key).digest() for key in found])
    return end


def _prefix(column: bytes, allowed: bytes) -> int:
    """How many bytes at the start of a column are allowed ones."""
    return len(column) - len(column.lstrip(allowed))
