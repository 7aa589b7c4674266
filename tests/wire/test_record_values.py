"""Values of many records at once: the bytes are those of built batches, the values those of decoded records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.compression import Codec
from wire.errors import Malformed
from wire.record_batch import Record, RecordBatch, build_batch
from wire.record_values import ValueEncoder, read_values

Values = list[tuple[int, bytes | None]]


def encoded(values: list[bytes], key: bytes | None, headers: list[tuple[str, bytes | None]], codec: Codec) -> bytes:
    encoder = ValueEncoder(key, headers)
    return encoder.batch(values, timestamp_ms=9, codec=codec, producer_id=3, producer_epoch=1, base_sequence=7)


def built(values: list[bytes], key: bytes | None, headers: list[tuple[str, bytes | None]], codec: Codec) -> bytes:
    records = [Record(-1, 9, key, value, tuple(headers)) for value in values]
    return build_batch(records, codec=codec, producer_id=3, producer_epoch=1, base_sequence=7)


def by_record(batch: RecordBatch) -> Values | None:
    try:
        return [(record.offset, record.value) for record in batch.records()]
    except Malformed:
        return None


def in_columns(batch: RecordBatch) -> Values | None:
    try:
        return [pair for offsets, values in read_values(batch) for pair in zip(offsets, values, strict=True)]
    except Malformed:
        return None


@given(
    values=st.lists(st.binary(max_size=200), min_size=1, max_size=90),
    key=st.none() | st.binary(max_size=80),
    headers=st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
)
def test_batches_of_values_equal_batches_of_records(
    values: list[bytes], key: bytes | None, headers: list[tuple[str, bytes | None]], codec: Codec
) -> None:
    assert encoded(values, key, headers, codec) == built(values, key, headers, codec)


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193])
def test_offset_deltas_of_every_width_are_encoded(count: int) -> None:
    values = [b"%d" % number * (number % 9) for number in range(count)]
    assert encoded(values, None, [], Codec.NONE) == built(values, None, [], Codec.NONE)


def test_more_lengths_than_the_tables_hold_are_encoded() -> None:
    encoder = ValueEncoder()
    for first in (0, 17_000):
        values = [b"x" * size for size in range(first, first + 17_000, 7)]
        values += [b"y"] * 16_000
        batch = RecordBatch(encoder.batch(values, timestamp_ms=1))
        assert [record.value for record in batch.records()] == values


def some_records(source: random.Random, count: int) -> list[Record]:
    shape = source.choice(["alike", "sizes", "keys", "any", "gaps"])
    offset = -1
    records = []
    for _ in range(count):
        offset += source.choice([1, 1, 5]) if shape == "gaps" else 1
        value: bytes | None = b"v" * (60 if shape == "alike" else source.randrange(180))
        key = b"k" * source.randrange(70) if shape in {"keys", "any"} else None
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if shape == "any" and source.random() < 0.2:
            value, headers = None, (("h", source.randbytes(3)),)
        records.append(Record(offset, source.randrange(100), key, value, headers))
    return records


@pytest.mark.parametrize("seed", range(60))
def test_values_are_the_same_as_those_of_records(seed: int) -> None:
    source = random.Random(seed)
    for count in (1, 40, 64, 65, 200, 1500):
        data = build_batch(some_records(source, count))
        found = in_columns(RecordBatch(data))
        assert found is not None
        assert found == by_record(RecordBatch(data))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_batches_give_the_same_or_are_refused_as_well(seed: int) -> None:
    source = random.Random(seed)
    for count in (5, 70, 400):
        data = bytearray(build_batch(some_records(source, count)))
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(61, len(data))] = source.choice([0, 1, 2, 127, 128, 255])
        batch = RecordBatch(bytes(data))
        assert in_columns(batch) == by_record(batch)
