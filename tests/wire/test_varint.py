"""Unsigned varints survive a round trip at every length, and decoding accepts at most 32 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import Malformed
from wire.varint import decode_uvarint, encode_uvarint


@given(st.integers(0, 2**32 - 1))
def test_varints_survive_a_round_trip(value: int) -> None:
    data = encode_uvarint(value)
    assert len(data) == max(1, (value.bit_length() + 6) // 7)
    assert decode_uvarint(b"xx" + data + b"y", 2) == (value, 2 + len(data))


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (2**32 - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_the_bytes_are_those_of_protocol_buffers(value: int, data: bytes) -> None:
    assert encode_uvarint(value) == data
    assert decode_uvarint(data, 0) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00", b"\xff" * 100])
def test_w4_more_than_32_bits_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_uvarint(data, 0)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_w4_a_cut_varint_is_an_index_error(data: bytes) -> None:
    with pytest.raises(IndexError):
        decode_uvarint(data, 0)


def test_a_negative_number_has_no_unsigned_varint() -> None:
    with pytest.raises(AssertionError):
        encode_uvarint(-1)
