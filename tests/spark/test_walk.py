"""Varints and the starts of records equal those of wire's decoder, which reads one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.walk import read_fields, varints
from wire.errors import Malformed
from wire.record_batch import Record, build_batch, read_varint
from wire.record_walk import LEAST_RECORD_BYTES, find_records

any_bytes = st.binary(min_size=1, max_size=30)


@pytest.mark.parametrize("bits", [32, 64])
@given(
    data=st.lists(st.one_of(any_bytes, st.integers(0, 127).map(lambda last: b"\xff" * 4 + bytes((last,)))), min_size=1)
)
def test_varints_equal_the_scalar_decoders(bits: int, data: list[bytes]) -> None:
    joined = b"".join(data) + b"\0" * 11
    expected = []
    for position in range(len(joined) - 11):
        try:
            expected.append(read_varint(joined, position, bits))
        except Malformed:
            with pytest.raises(Malformed):
                varints(np.frombuffer(joined, np.uint8), np.array([position]), bits=bits)
            expected.append(None)
    good = [position for position, one in enumerate(expected) if one is not None]
    values, behind = varints(np.frombuffer(joined, np.uint8), np.array(good, np.int64), bits=bits)
    assert list(zip(values.tolist(), behind.tolist(), strict=True)) == [one for one in expected if one is not None]


@given(data=any_bytes, count=st.integers(-3, 6), start=st.integers(0, 30))
def test_any_bytes_are_exact_records_or_malformed(data: bytes, count: int, start: int) -> None:
    starts = [-1]
    try:
        find_records(data, start, len(data), count, starts)
        fields = read_fields(np.frombuffer(data, np.uint8), np.array(starts[1:], np.int64))
    except Malformed:
        return
    assert len(starts) == count + 1
    ends = fields.ends.tolist()
    assert [*starts[1:], len(data)] == [start, *ends]
    for keys, sizes in ((fields.key_positions, fields.key_sizes), (fields.value_positions, fields.value_sizes)):
        assert ((keys + np.maximum(sizes, 0)) <= fields.ends).all()


@pytest.mark.parametrize("size", [0, 50, 63, 64, 8000, 8192, 1 << 20, 1 << 21])
def test_records_with_lengths_of_every_width_are_found(size: int) -> None:
    payload = build_batch([Record(-1, 0, None, bytes(size)), Record(-1, 1, b"key", None)])[61:]
    starts: list[int] = []
    find_records(payload, 0, len(payload), 2, starts)
    fields = read_fields(np.frombuffer(payload, np.uint8), np.array(starts, np.int64))
    assert fields.value_sizes.tolist() == [size, -1]
    assert fields.key_sizes.tolist() == [-1, 3]


def test_malformed_records_append_nothing() -> None:
    starts = [5]
    with pytest.raises(Malformed):
        find_records(bytes(100), 0, 100, 100 // LEAST_RECORD_BYTES, starts)
    assert starts == [5]
