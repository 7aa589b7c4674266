"""Proves that many records at once are well-formed: a faster equivalent of record_walk for records of one shape.

Adjacent records mostly agree in the width of their varints, in whether they have a key, and in having no headers. Each
header field is then at the same place in all of them. The bytes of one field form a column, which C loops can check:
`bytes.translate` finds the first byte that is not allowed, two-byte lengths become lanes of one big integer, and one
addition compares every record's length with the lengths of its key and value.

Records of one size lie at a constant distance, so their columns are slices of the batch. For other records, the only
loop in Python hops from length to length, and a window is cut out of each record.

Nothing is trusted: each step reduces `proved` to the records before the first that fails it, and the caller passes the
remaining records to the walk that checks records one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from struct import unpack
from typing import Final, NamedTuple

AT_ONCE: Final = 1024  # records per step
AT_LEAST: Final = 32  # with fewer records of one size, a step costs more than it saves
FEW: Final = 64  # records whose offset deltas take one byte: too few for columns if their sizes differ
_HOP_AT_LEAST: Final = 128  # the same for records of various sizes

_WINDOW: Final = 16  # bytes: the last byte of the previous record, and the header fields of any known shape
_NULL_KEY: Final = 1
_ZERO: Final = b"\0"
_NARROW: Final = b"\1" * 128 + bytes(128)
_ONES: Final = int.from_bytes(b"\1\0" * AT_ONCE, "little")
_WIDENED: Final = [bytes((low | 0x80, 0)) for low in range(128)]  # the one-byte varints, as two bytes

# Offset delta k is written as the varint of 2k, in 1, 2 and 3 bytes below 64, 8192 and 1048576.
_PERIOD: Final = 8192
_DELTAS: Final = bytes(range(0, 128, 2))
_DELTAS_FIRST: Final = bytes(range(128, 256, 2)) * (_PERIOD // 64)
_DELTAS_LAST_OF_2: Final = b"".join(bytes((high,)) * 64 for high in range(_PERIOD // 64))
_DELTAS_MIDDLE_OF_3: Final = bytes(byte | 0x80 for byte in _DELTAS_LAST_OF_2)


class Proof(NamedTuple):
    """`total` records are well-formed and end at `position`; their timestamp deltas (ms) lie between the two given."""

    total: int
    position: int
    min_delta: int
    max_delta: int
    has_null_key: bool


class _Columns(NamedTuple):
    """Adjacent records, as columns.

    field(i) has the byte of each record at place i, counted from its attributes; `last` has the last byte of each.
    `lengths` are in lanes, zigzag, valid for the first `proved`; starts has one more position than there are records.
    """

    total: int
    proved: int
    field: Callable[[int], bytes]
    last: bytes
    lengths: int
    starts: list[int] | range


class _Shape(NamedTuple):
    """`proved` records are well-formed; `times` and `sizes` are lanes of timestamp deltas and value lengths, zigzag."""

    proved: int
    records: _Columns
    times: int
    sizes: int
    has_null_key: bool


def prove_alike(d: bytes, p: int, index: int, wanted: int) -> Proof | None:
    """Prove records of `d` from position `p`, the first with offset delta `index`: at most `wanted`, possibly none.

    Known shapes have no headers, a value that is not null, lengths of one or two bytes, and a timestamp delta of one or
    two bytes that is not negative and as wide as the first record's. They have no keys, or records and keys of one
    size.
    """
    shape = _prove(d, p, index, wanted)
    if shape is None:
        return None
    seen = _lanes(shape.times, shape)
    return Proof(shape.proved, shape.records.starts[shape.proved], min(seen) >> 1, max(seen) >> 1, shape.has_null_key)


def values_alike(d: bytes, p: int, index: int, wanted: int) -> tuple[list[bytes], int] | None:
    """The values of records that `prove_alike` proves, and the position after them."""
    shape = _prove(d, p, index, wanted)
    if shape is None:
        return None
    starts = shape.records.starts
    # A value ends before the byte that is the number of headers.
    ends = starts[1 : shape.proved + 1]
    sizes = _lanes(shape.sizes, shape)
    return [d[end - 1 - (size >> 1) : end - 1] for end, size in zip(ends, sizes, strict=True)], starts[shape.proved]


def _lanes(numbers: int, shape: _Shape) -> tuple[int, ...]:
    return unpack(f"<{shape.proved}H", numbers.to_bytes(2 * shape.records.total, "little")[: 2 * shape.proved])


def _prove(d: bytes, p: int, index: int, wanted: int) -> _Shape | None:
    head = d[p : p + _WINDOW - 1]
    if len(head) < _WINDOW - 1 or index >= 128 * _PERIOD:
        return None
    size = _size(head)
    if p + size > len(d) or d[p + size - 1]:  # cut off, headers, or an invalid record
        return None
    deltas = _offset_columns(index, min(wanted, AT_ONCE))
    # Places of a record's fields, counted from its attributes.
    body = _width(head[0])
    offset_at = 1 + _width(head[body + 1])
    key_at = offset_at + len(deltas)
    key = head[body + key_at]
    value_at = key_at + 1 + (0 if key == _NULL_KEY else key >> 1)
    records = _equal_sized(d, p, len(deltas[0]), size)
    if key != _NULL_KEY and (records is None or key & 0x81 or body + value_at + 2 > size):
        return None
    # Without keys of one size, gathering the values' places too would be no faster than the walk.
    records = records or _hop(d, p, len(deltas[0]))
    if records is None:
        return None
    field, count = records.field, records.total
    proved = min(records.proved, _prefix(records.last, _ZERO))  # the number of headers
    proved = min(proved, _prefix(field(key_at), head[body + key_at : body + key_at + 1]))
    for i, column in enumerate(deltas):
        proved = min(proved, _equal_prefix(field(offset_at + i), column[:count]))
    proved, times, wide = _numbers(field(1), field(2), proved)
    proved = _cut(proved, wide ^ (_ones(count) if offset_at == 3 else 0))
    proved, sizes, wide = _numbers(field(value_at), field(value_at + 1), proved)
    # A length counts attributes, timestamp and offset delta, key length, key, value length, value and header count.
    rest = value_at + 1 + 1
    proved = _cut(proved, records.lengths ^ (sizes + (wide << 1) + 2 * rest * _ones(count)))
    if proved < AT_LEAST:
        return None
    return _Shape(proved, records, times, sizes, key == _NULL_KEY)


def _width(first: int) -> int:
    return 1 if first < 0x80 else 2


def _size(head: bytes) -> int:
    """Size of a record whose length is a varint of one or two bytes."""
    return (head[0] >> 1) + 1 if head[0] < 0x80 else ((head[0] + (head[1] << 7)) >> 1) - 62


def _offset_columns(index: int, wanted: int) -> tuple[bytes, ...]:
    """The columns of offset deltas from `index` on: at most `wanted`, all of one width."""
    if index < 64:
        return (_DELTAS[index : index + wanted],)
    start = index % _PERIOD
    end = start + wanted
    first = _DELTAS_FIRST[start:end]
    if index < _PERIOD:
        return first, _DELTAS_LAST_OF_2[start:end]
    return first, _DELTAS_MIDDLE_OF_3[start:end], bytes((index // _PERIOD,)) * len(first)


def _equal_sized(d: bytes, p: int, wanted: int, size: int) -> _Columns | None:
    """The records from `p` on that have the same length, if there are enough of them."""
    width = _width(d[p])
    length = d[p : p + width]
    if length[0] & 1 or length[-1] > 0x7F or size < _WINDOW or d[p + size : p + size + width] != length:
        return None
    count = min(wanted, (len(d) - p) // size)
    for i in range(width):
        count = _prefix(d[p + i : p + count * size : size], length[i : i + 1])
    if count < AT_LEAST:
        return None
    end = p + count * size
    body = p + width
    return _Columns(
        total=count,
        proved=count,
        field=lambda i: d[body + i : end : size],
        last=d[p + size - 1 : end : size],
        lengths=(size - width << 1) * _ones(count),
        starts=range(p, end + 1, size),
    )


def _hop(d: bytes, p: int, wanted: int) -> _Columns | None:
    """The records from `p` on, found by their lengths, without the last ones that may lack a complete window."""
    if wanted < _HOP_AT_LEAST:
        return None
    starts: list[int] = []
    note = starts.append
    q = p
    safe = len(d) - _WINDOW
    for _ in range(wanted):
        if q > safe:
            break
        note(q)
        b = d[q]
        if b < 0x80:
            q += (b >> 1) + 1
        else:
            q += ((b + (d[q + 1] << 7)) >> 1) - 62  # the two bytes of the length, and half of b + 128 (c - 1)
    if q > len(d):
        q = starts.pop()
    count = len(starts)
    if count < _HOP_AT_LEAST:
        return None
    note(q)
    reach = _WINDOW - 1
    windows = [d[q - 1 : q + reach] for q in (starts if p else starts[1:])]
    if p == 0:
        windows.insert(0, _ZERO + d[:reach])
    end = _WINDOW * count
    joined = b"".join(windows)
    narrow = joined[1:end:_WINDOW].translate(_NARROW)
    short = narrow.count(1)
    if 0 < short < count:  # one-byte lengths among two-byte lengths: write them in two bytes as well
        for i in compress(range(count), narrow):
            window = windows[i]
            windows[i] = window[:1] + _WIDENED[window[1]] + window[2:-1]
        joined = b"".join(windows)
    body = 2 if short == count else 3
    proved, lengths, _ = _numbers(joined[1:end:_WINDOW], joined[2:end:_WINDOW], count)
    if proved < AT_LEAST:
        return None
    return _Columns(
        total=count,
        proved=proved,
        field=lambda i: joined[body + i : end : _WINDOW],
        last=joined[_WINDOW : end + 1 : _WINDOW],
        lengths=lengths,
        starts=starts,
    )


def _numbers(first: bytes, second: bytes, proved: int) -> tuple[int, int, int]:
    """Varints of one or two bytes: how many are proved to be such and not negative; their lanes, and the lanes of the
    wide ones.
    """
    raw = bytearray(2 * len(first))
    raw[0::2] = first
    raw[1::2] = second
    pairs = int.from_bytes(raw, "little")
    ones = _ones(len(first))
    wide = pairs >> 7 & ones
    proved = _cut(proved, pairs & (ones | wide << 15))  # the sign, and a third byte
    return proved, (pairs & 0x7F * ones) + (pairs >> 1 & 0x3F80 * wide), wide


def _ones(count: int) -> int:
    return _ONES & (1 << 16 * count) - 1


def _cut(proved: int, wrong: int) -> int:
    """At most the records before the first lane that is not zero."""
    return min(proved, _lowest_bit(wrong) // 16) if wrong else proved


def _prefix(column: bytes, allowed: bytes) -> int:
    """How many bytes at the start of `column` are in `allowed`."""
    others = column.translate(None, allowed)
    return column.index(others[0]) if others else len(column)


def _equal_prefix(column: bytes, other: bytes) -> int:
    if column == other:
        return len(column)
    return _lowest_bit(int.from_bytes(column, "little") ^ int.from_bytes(other, "little")) // 8


def _lowest_bit(number: int) -> int:
    return (number & -number).bit_length() - 1
