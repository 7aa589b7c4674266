"""The walk over a batch's records: three implementations are compared on valid and on damaged records."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from itertools import chain

import pytest

from wire.batch_header import HEADER_SIZE
from wire.compression import MAX_WORKING_BYTES, PIECE_BYTES
from wire.errors import Malformed
from wire.record_batch import Record, RecordBatch, build_batch
from wire.record_columns import AT_ONCE, prove_alike
from wire.record_walk import BadRecord, RecordWalk, shallow_records, walk_pieces

Answer = tuple[int, int, bool] | None  # least and greatest timestamp delta, whether a null key was seen; None: refused


def encode(records: list[Record]) -> bytes:
    return build_batch(records, base_timestamp=0)[HEADER_SIZE:]


def decoded(data: bytes, count: int) -> Answer:
    """With the decoder of records; offset deltas are checked here."""
    header = bytearray(build_batch([Record()], base_timestamp=0)[:HEADER_SIZE])
    header[8:12] = (len(data) + HEADER_SIZE - 12).to_bytes(4, "big")
    header[57:61] = count.to_bytes(4, "big")
    try:
        records = list(RecordBatch(bytes(header) + data).records())
    except Malformed:
        return None
    if [record.offset for record in records] != list(range(count)):
        return None
    times = [record.timestamp for record in records]
    return min(times), max(times), any(record.key is None for record in records)


def walked(data: bytes, count: int, *, alike: bool = True) -> Answer:
    walk = RecordWalk(count)
    if not alike:
        walk.failures = 1 << 30
    try:
        assert walk.feed(data) == len(data)
    except Malformed:
        return None
    return walk.min_delta, walk.max_delta, walk.has_null_key


def walked_in_pieces(data: bytes, count: int, sizes: Iterator[int]) -> Answer:
    walk = RecordWalk(count)
    pieces = []
    while data:
        size = next(sizes)
        pieces.append(data[:size])
        data = data[size:]
    try:
        walk_pieces(walk, pieces)
    except Malformed:
        return None
    return walk.min_delta, walk.max_delta, walk.has_null_key


def some_records(source: random.Random) -> list[Record]:
    """Records of a possible batch of one producer: of one shape or of several."""
    count = source.choice([1, 5, 20, 60, 100, 300, 1200])
    size = source.choice([0, 5, 30, 58, 100, 400])
    varied = source.random() < 0.6
    keys = source.choice(["none", "none", "varied", "one size", "some"])
    times = source.choice(["one", "slow", "any", "both signs"])
    with_headers, with_nulls = source.random() < 0.1, source.random() < 0.1
    made = []
    time = 0
    for index in range(count):
        if times == "slow":
            time += source.randrange(10) == 0 and source.randrange(10)
        elif times == "any":
            time = source.randrange(20_000)
        elif times == "both signs":
            time = source.randrange(-5, 5)
        length = max(0, int(source.gauss(size, size / 4))) if varied else size
        key = {
            "none": None,
            "varied": b"k" * source.randrange(20),
            "one size": b"%08d" % index,
            "some": b"key" if source.random() < 0.5 else None,
        }[keys]
        value = None if with_nulls and source.random() < 0.1 else source.randbytes(length)
        headers = (("a", b"b"), ("c", None)) if with_headers and source.random() < 0.3 else ()
        made.append(Record(-1, time, key, value, headers))
    return made


def damaged(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2])):
        at = source.randrange(len(changed))
        kind = source.randrange(4)
        if kind < 2:
            old = changed[at]
            changed[at] = source.choice(
                [0, 1, 2, 127, 128, 129, 255, (old + 2) % 256, (old - 2) % 256, old ^ 128, old ^ 1]
            )
        elif kind == 2 and len(changed) > 3:
            del changed[at : at + source.randint(1, 3)]
        else:
            changed[at:at] = bytes((source.choice([0, 1, 2, 128, changed[at]]),))
    return bytes(changed)


@pytest.mark.parametrize("seed", range(6))
def test_every_way_of_walking_gives_the_same_answer(seed: int) -> None:
    source = random.Random(seed)
    sizes = iter(lambda: source.choice([1, 7, 100, 5000]), 0)
    refused = accepted = 0
    for _ in range(15):
        records = some_records(source)
        good = encode(records)
        for data in [good, *(damaged(good, source) for _ in range(8))]:
            answer = decoded(data, len(records))
            assert walked(data, len(records)) == answer
            assert walked(data, len(records), alike=False) == answer
            assert walked_in_pieces(data, len(records), sizes) == answer
            refused += answer is None
            accepted += answer is not None
        assert walked(good, len(records)) is not None
    assert min(refused, accepted) > 20  # some damage is harmful and some harmless


ALIKE = {
    "one size": [Record(value=bytes(100)) for _ in range(3000)],
    "one size with keys": [Record(key=b"%05d" % i, value=bytes(100)) for i in range(3000)],
    "one size, below 64 bytes": [Record(value=bytes(20)) for _ in range(3000)],
    "various sizes": [Record(value=bytes(70 + i * 7 % 90)) for i in range(3000)],
    "sizes on both sides of 64 bytes": [Record(value=bytes(40 + i * 7 % 50)) for i in range(3000)],
    "more records than two bytes count": [Record(value=bytes(i % 3 + 20)) for i in range(8192 + 2000)],
    "time goes on": [Record(timestamp=i // 4, value=bytes(70 + i * 7 % 90)) for i in range(3000)],
}


@pytest.mark.parametrize("name", ALIKE)
def test_records_of_one_shape_are_proved_in_bulk(name: str) -> None:
    records = ALIKE[name]
    records = [record._replace(timestamp=max(record.timestamp, 0)) for record in records]
    data = encode(records)
    walk = RecordWalk(len(records))
    position = walk._walk_each(data, 0, 64)
    index = 64
    steps = 0
    while index < len(records) - 200:
        proof = prove_alike(data, position, index, len(records) - index)
        assert proof is not None
        index, position = index + proof.total, proof.position
        steps += 1
    assert steps <= len(records) / AT_ONCE + 3
    assert walked(data, len(records)) == decoded(data, len(records))


@pytest.mark.parametrize("name", list(ALIKE)[:5])
def test_the_columns_detect_every_changed_header_field(name: str) -> None:
    """Bytes of records in the middle of a step get other values; the walk by columns decides like the one by one."""
    records = [record._replace(timestamp=3) for record in ALIKE[name][:300]]
    data = encode(records)
    walk = RecordWalk(200)
    start = walk.feed(data, is_last=False)
    walk.count = 202
    end = start + walk.feed(data[start:], is_last=False)
    for at in range(start, end):
        for change in (1, 2, 64, 128):
            changed = data[:at] + bytes((data[at] ^ change,)) + data[at + 1 :]
            assert walked(changed, 300) == walked(changed, 300, alike=False)


RECORD = "0e 00 00 00 01 02 61 00"  # length 7: no deltas, no key, value "a", no headers


@pytest.mark.parametrize(
    ("data", "count", "index", "words"),
    [
        pytest.param("", 1, 0, "1 were announced", id="no record"),
        pytest.param(RECORD, 2, 1, "2 were announced", id="one of two"),
        pytest.param(RECORD[:-3], 1, 0, "cut off", id="cut off"),
        pytest.param(RECORD + "80", 2, 1, "cut off", id="cut off in its length"),
        pytest.param("ff ff ff ff 1f" + RECORD, 1, 0, "too wide", id="length of more than 32 bits"),
        pytest.param("0d" + RECORD, 1, 0, "negative length", id="negative length"),
        pytest.param("0e 00 00 02 01 02 61 00", 1, 0, "offset delta is 1", id="offset out of turn"),
        pytest.param("0e 00 00 01 01 02 61 00", 1, 0, "offset delta is -1", id="negative offset"),
        pytest.param("0e 00 00 00 03 02 61 00", 1, 0, "negative key", id="key of -2"),
        pytest.param("0e 00 00 00 01 03 61 00", 1, 0, "negative value", id="value of -2"),
        pytest.param("0e 00 00 00 01 04 61 00", 1, 0, "leads out of the batch", id="value too long"),
        pytest.param("10 00 00 00 01 02 61 00 00", 1, 0, "differ by -1", id="bytes after the headers"),
        pytest.param("0e 00 00 00 01 00 61 00", 1, 0, "headers", id="value too short"),
        pytest.param("14 00 00 00 01 01 fe ff ff ff 0f", 1, 0, "number of headers", id="2^31-1 headers"),
        pytest.param("0c 00 00 00 01 01 01", 1, 0, "number of headers", id="-1 headers"),
        pytest.param("10 00 00 00 01 01 02 01 01", 1, 0, "without a name", id="header without name"),
        pytest.param("10 00 00 00 01 01 02 00 03", 1, 0, "negative header", id="header of -2"),
        pytest.param("0e 00 00 00 01 02 61 00" + RECORD, 2, 1, "offset delta is 0", id="the second record"),
    ],
)
def test_errors_name_the_records_index(data: str, count: int, index: int, words: str) -> None:
    with pytest.raises(BadRecord, match=words) as caught:
        RecordWalk(count).feed(bytes.fromhex(data))
    assert caught.value.index == index


def test_bytes_after_the_last_record_are_malformed() -> None:
    with pytest.raises(Malformed, match="1 bytes after the last of 1"):
        RecordWalk(1).feed(bytes.fromhex(RECORD + "00"))
    with pytest.raises(Malformed, match="bytes after the last of 1"):
        walk_pieces(RecordWalk(1), [bytes.fromhex(RECORD), b"\0"])


def test_w6_a_too_large_record_is_refused_before_its_bytes_arrive() -> None:
    announced = (2 * MAX_WORKING_BYTES + 2) << 1
    length = bytes((announced >> shift & 0x7F) | 0x80 for shift in (0, 7, 14, 21)) + bytes((announced >> 28,))

    def pieces() -> Iterator[bytes]:
        yield length
        raise AssertionError("the record should have been refused already")

    with pytest.raises(BadRecord, match="more than 67108864"):
        walk_pieces(RecordWalk(1), pieces())


def test_a_record_larger_than_many_pieces_is_walked() -> None:
    data = encode([Record(timestamp=0, value=bytes(100_000)), Record(timestamp=4, key=b"k")])
    walk = RecordWalk(2)
    walk_pieces(walk, [data[at : at + 10] for at in range(0, len(data), 10)])
    assert (walk.min_delta, walk.max_delta, walk.has_null_key) == (0, 4, True)


def long_records(source: random.Random) -> list[Record]:
    """Among short records, one that is longer than a piece by its key, its value or its headers."""
    size = PIECE_BYTES + source.randrange(10_000)
    few: tuple[tuple[str, bytes | None], ...] = (("n", b"v"), ("null", None))
    long = [
        Record(key=None, value=bytes(size), timestamp=source.choice([0, -5, 1 << 40])),
        Record(key=bytes(size), value=None, headers=few),
        Record(key=b"k", value=b"v" * 300, headers=(("h" * 70, b"v" * 130), *few * (size // 12))),
        Record(key=b"", value=b"", headers=(("h", bytes(size)), *few)),
    ]
    return [Record(value=b"before"), source.choice(long), *[Record(key=b"k", value=b"behind")] * source.randrange(3)]


@pytest.mark.parametrize("seed", range(24))
def test_a_record_longer_than_a_piece_is_checked_alike(seed: int) -> None:
    source = random.Random(seed)
    records = long_records(source)
    data = bytearray(encode(records))
    if source.random() < 0.7:
        places = [*range(8, 40), *range(len(data) - 60, len(data))]
        data[source.choice(places)] ^= 1 << source.randrange(8)
    expected = decoded(bytes(data), len(records))
    sizes = iter(lambda: source.choice([1, 100, 70_000, PIECE_BYTES]), None)
    assert walked_in_pieces(bytes(data), len(records), sizes) == expected
    if expected is not None:
        pieces = [bytes(data[at : at + 33_333]) for at in range(0, len(data), 33_333)]
        assert [has_key for _, has_key in shallow_records(pieces, len(records))] == [
            record.key is not None for record in records
        ]


def test_w6_a_long_record_is_held_in_few_pieces() -> None:
    head = encode([Record(value=bytes(40 * PIECE_BYTES))])[:20]
    tracemalloc.start()
    try:
        with pytest.raises(BadRecord, match="cut off"):
            walk_pieces(RecordWalk(1), chain([head], (bytes(PIECE_BYTES) for _ in range(39))))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 6 * PIECE_BYTES


def test_shallow_records_give_times_and_keys_in_order() -> None:
    records = [Record(timestamp=i * 50, key=b"k" if i % 3 else None, value=bytes(i)) for i in range(100)]
    data = encode(records)
    wanted = [(record.timestamp, record.key is not None) for record in records]
    assert list(shallow_records([data], 100)) == wanted
    assert list(shallow_records([data[at : at + 9] for at in range(0, len(data), 9)], 100)) == wanted
