"""Finds the positions of the keys, values and headers of records.

kbroker.spark.parts finds where the records begin. numpy decodes everything else for many records at once: decoding a
varint of every record takes a few steps, whatever the widths, and creates no Python object. numpy checks every index,
so nothing is read after the end of a buffer.

The walk does not trust a batch's claims. It is bounded by the available bytes, and raises Malformed unless lengths,
offsets and the end of the last record fit exactly.

Source  DefaultRecord.readFrom of Apache Kafka 4.3.1; figures in docs/spark.md, from tests/bench/spark_walk.py
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wire.errors import Malformed

Bytes8: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]


class Fields(NamedTuple):
    """The fields of records, one array for each: positions in the buffer, sizes in bytes (-1 is null), deltas."""

    timestamp_deltas: Ints
    offset_deltas: Ints
    key_positions: Ints
    key_sizes: Ints
    value_positions: Ints
    value_sizes: Ints
    header_counts: Ints
    header_positions: Ints
    ends: Ints


def read_fields(data: Bytes8, starts: Ints) -> Fields:
    """The fields of the records that begin at `starts`, as `wire.record_walk.find_records` found them.

    Errors  Malformed if a record is not framed correctly; `read_headers` checks headers
    """
    try:
        lengths, at = varints(data, starts)
        ends = at + lengths
        timestamp_deltas, at = varints(data, at + 1, bits=64)  # skips the unused attributes byte
        offset_deltas, at = varints(data, at)
        key_sizes, key_positions = varints(data, at)
        at = key_positions + np.maximum(key_sizes, 0)
        value_sizes, value_positions = varints(data, at)
        at = value_positions + np.maximum(value_sizes, 0)
        header_counts, at = varints(data, at)
    except IndexError:
        raise Malformed("a record's fields are larger than the record") from None
    if lengths.min(initial=0) < 0 or min(key_sizes.min(initial=0), value_sizes.min(initial=0)) < -1:
        raise Malformed("a record with a negative length")
    # Positions only increase, so a record that ends at its end was never read beyond it.
    if header_counts.any():
        if header_counts.min() < 0 or (header_counts * 2 > ends - at).any():
            raise Malformed("a record with more headers than it has bytes for")
        at = np.where(header_counts > 0, ends, at)
    if not np.array_equal(at, ends):
        raise Malformed("a record's fields are not as long as the record")
    return Fields(
        timestamp_deltas, offset_deltas, key_positions, key_sizes, value_positions, value_sizes, header_counts,
        _after_count(header_counts, value_positions + np.maximum(value_sizes, 0), data), ends,
    )  # fmt: skip


def _after_count(header_counts: Ints, positions: Ints, data: Bytes8) -> Ints:
    """Where the first header begins, for records that have headers."""
    return varints(data, positions)[1] if header_counts.any() else positions


class Headers(NamedTuple):
    """The headers of some records, one record after the other; counts has one entry for each record."""

    counts: Ints
    name_positions: Ints
    name_sizes: Ints
    value_positions: Ints
    value_sizes: Ints


def read_headers(data: Bytes8, fields: Fields) -> Headers:
    """The headers of all records. Errors: Malformed."""
    counts, ends = fields.header_counts, fields.ends
    at = fields.header_positions.copy()
    total = int(counts.sum())
    first = np.cumsum(counts) - counts  # the index of each record's first header among all
    found = np.empty((4, total), np.int64)
    remaining = np.flatnonzero(counts)
    number = 0
    try:
        while len(remaining):
            places = first[remaining] + number
            name_sizes, name_positions = varints(data, at[remaining])
            value_sizes, value_positions = varints(data, name_positions + np.maximum(name_sizes, 0))
            if name_sizes.min() < 0 or value_sizes.min() < -1:
                raise Malformed("a header with a negative length, or without a name")
            found[:, places] = name_positions, name_sizes, value_positions, value_sizes
            at[remaining] = value_positions + np.maximum(value_sizes, 0)
            number += 1
            is_last = counts[remaining] == number
            done = remaining[is_last]
            if (at[done] != ends[done]).any():
                raise Malformed("a record's headers are not as long as the record")
            remaining = remaining[~is_last]
    except IndexError:
        raise Malformed("a record's headers are larger than the record") from None
    return Headers(counts, found[0], found[1], found[2], found[3])


def varints(data: Bytes8, positions: Ints, *, bits: int = 32) -> tuple[Ints, Ints]:
    """The zigzag varint at each position, and the positions after them.

    Errors  Malformed for a varint of more than `bits` bits (32 or 64); IndexError after the end of `data`
    """
    byte = data[positions]
    at = positions + 1
    if not (byte > 127).any():
        return _ZIGZAG[byte], at
    value = (byte & 127).astype(np.uint64)
    shift = 7
    if (byte > 127).all():  # usual for lengths of records: no need to select some of them
        byte = data[at]
        value |= (byte & 127).astype(np.uint64) << np.uint64(7)
        at += 1
        shift = 14
    more = np.flatnonzero(byte > 127)
    while len(more):
        if shift >= bits:
            raise Malformed(f"a varint of more than {bits} bits")
        byte = data[at[more]]
        if shift + 7 > bits and (byte >> (bits - shift)).any():
            raise Malformed(f"a varint of more than {bits} bits")
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte > 127]
        shift += 7
    signed = (value >> np.uint64(1)).view(np.int64)
    signed ^= -(value & np.uint64(1)).view(np.int64)
    return signed, at


_ZIGZAG: Final = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
