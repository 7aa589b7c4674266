"""Arrow arrays over bytes in a buffer, and over numpy arrays. The latter are not copied.

All arrays are built from buffers. `pyarrow.array` would import pandas to check its argument, which costs each of
Spark's Python workers 0.3 s and 30 MiB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbroker.spark.walk import Headers, Ints
from wire.compression import Bytes


def binary_column(data: Bytes, positions: Ints, sizes: Ints, kind: pa.DataType | None = None) -> pa.Array:
    """The bytes of `data` at the given ascending positions; a size of -1 is null.

    Bound  `data` has less than 2 GiB, the limit of this Arrow type
    """
    kind = pa.binary() if kind is None else kind
    total = len(positions)
    if total == 0:
        return pa.nulls(0, kind)
    is_null = sizes < 0
    if is_null.all():
        return pa.nulls(total, kind)
    # The array alternates gaps and values. It covers every byte up to the last value.
    cuts = np.empty(2 * total + 1, np.int32)
    cuts[0] = 0
    cuts[1::2] = positions
    cuts[2::2] = positions + np.maximum(sizes, 0)
    pieces = pa.Array.from_buffers(kind, 2 * total, [None, pa.py_buffer(cuts), pa.py_buffer(data)])
    values = pieces.take(number_column(pa.int32(), np.arange(1, 2 * total, 2, dtype=np.int32)))
    return _with_nulls(values, is_null)


def _with_nulls(values: pa.Array, is_null: npt.NDArray[np.bool_]) -> pa.Array:
    if not is_null.any():
        return values
    return pa.Array.from_buffers(values.type, len(values), [_validity(~is_null), *values.buffers()[1:]])


def _validity(is_valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def number_column(kind: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    """The numbers of an array. Their width must be that of `kind`."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def constant_column(text: bytes, total: int) -> pa.Array:
    """The same string `total` times."""
    ends = np.arange(0, (total + 1) * len(text), len(text), dtype=np.int32) if text else np.zeros(total + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), total, [None, pa.py_buffer(ends), pa.py_buffer(text * total)])


def header_column(kind: pa.DataType, data: Bytes, headers: Headers) -> pa.Array:
    """The headers of each record; null if it has none, as in the Kafka source."""
    names = binary_column(data, headers.name_positions, headers.name_sizes)
    structs = pa.StructArray.from_arrays(
        [_text(names), binary_column(data, headers.value_positions, headers.value_sizes)],
        fields=list(kind.value_type),
    )
    ends = np.zeros(len(headers.counts) + 1, np.int32)
    np.cumsum(headers.counts, out=ends[1:])
    return pa.Array.from_buffers(
        kind, len(headers.counts), [_validity(headers.counts > 0), pa.py_buffer(ends)], children=[structs]
    )


def _text(names: pa.Array) -> pa.Array:
    """Names as strings. Invalid UTF-8 becomes U+FFFD, as in Java."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
