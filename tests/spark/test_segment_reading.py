"""Reading a remote segment returns the stored rows, or an error with place and cause."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.spark.errors import (
    DamagedObject,
    KbrokerSourceError,
    MissingObject,
    StoreUnavailable,
    UnknownCodec,
    UnrepresentableRecord,
)
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.segment_reading import read_segment
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.local import LocalRemoteStorage
from tests.spark.segments import ALL, Tier, expected_rows, rows_of
from wire.compression import Codec
from wire.record_batch import (
    Record,
    RecordBatch,
    batches,
    build_batch,
    set_max_timestamp,
    with_payload,
)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


def simple_log(
    count: int, *, per_batch: int = 10, start: int = 100, codec: Codec = Codec.NONE, size: int = 50
) -> bytes:
    """`count` batches of equal records, without gaps between their offsets."""
    return b"".join(
        build_batch(
            [Record(-1, 1000 + number, b"k%d" % number, b"v" * size) for number in range(per_batch)],
            base_offset=start + index * per_batch,
            codec=codec,
        )
        for index in range(count)
    )


some_bytes = st.none() | st.binary(max_size=300)
records = st.builds(
    Record,
    st.just(-1),
    st.integers(-(2**40), 2**43),
    some_bytes,
    some_bytes,
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200)), max_size=4).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches of all kinds in offset order, with some gaps."""
    offset = draw(st.integers(0, 2**40))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        chosen = draw(st.lists(records, min_size=1, max_size=40))
        gaps = draw(st.integers(0, 3))
        placed = []
        at = offset
        for record in chosen:
            placed.append(record._replace(offset=at))
            at += 1 + (gaps if draw(st.booleans()) else 0)
        append_time = draw(st.none() | st.integers(0, 2**43))
        made.append(
            build_batch(
                placed,
                base_offset=offset,
                codec=draw(st.sampled_from(Codec)),
                is_control=draw(st.integers(0, 9)) == 0,
                log_append_time=append_time,
            )
        )
        offset = at + draw(st.sampled_from([0, 0, 0, 5]))
    return b"".join(made)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=logs(), data=st.data())
def test_rows_equal_the_records_of_wires_decoder(tier: Tier, log: bytes, data: st.DataObject) -> None:
    found = list(batches(log))
    first, last = found[0].base_offset, found[-1].last_offset
    start = data.draw(st.integers(first, last), label="start")
    end = data.draw(st.integers(start, last + 1), label="end")
    before = [batch for batch in found if batch.base_offset <= start]
    position = data.draw(st.sampled_from([0, before[-1].position]), label="position")
    piece = SegmentPiece(tier.add(log), start, end, position)
    chunk_bytes = data.draw(st.sampled_from([61, 1000, 8 << 20]), label="chunk_bytes")
    assert tier.rows(piece, chunk_bytes=chunk_bytes) == expected_rows(found, start, end)


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_gives_the_same_rows(tier: Tier, codec: Codec) -> None:
    log = simple_log(5, codec=codec)
    rows = tier.rows(tier.piece(log))
    assert rows == expected_rows(batches(simple_log(5)), 100, 150)
    assert len(rows) == 50


def test_only_requested_columns_are_returned_in_order(tier: Tier) -> None:
    piece = tier.piece(simple_log(1, per_batch=2))
    (made,) = read_segment(tier.storage, piece, ("offset", "value"))
    assert made.schema.names == ["offset", "value"]
    assert rows_of([made]) == [(100, b"v" * 50), (101, b"v" * 50)]
    (made,) = read_segment(tier.storage, piece, ())
    assert made.num_columns == 0


def test_a_batch_larger_than_a_chunk_is_read_whole(tier: Tier) -> None:
    log = build_batch([Record(-1, 0, None, bytes(3 << 20))], base_offset=100) + simple_log(1, start=101)
    rows = tier.rows(tier.piece(log), ("value",), chunk_bytes=100_000)
    assert [len(value) for (value,) in rows] == [3 << 20] + [50] * 10


class Counting(LocalRemoteStorage):
    """Records the requested ranges, and fails a given number of times."""

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self.configure({"dir": str(tier.root / "tier")})
        self.asked: list[tuple[int, int | None]] = []
        self.failures: list[RemoteStorageError] = []

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        if self.failures:
            raise self.failures.pop()
        self.asked.append((start_position, end_position))
        return super().fetch_log_segment(metadata, start_position, end_position)

    @property
    def asked_bytes(self) -> int:
        return sum((end or 0) + 1 - start for start, end in self.asked)


def test_a_piece_reads_no_byte_outside_its_positions(tier: Tier) -> None:
    log = simple_log(300)
    found = list(batches(log))
    segment = tier.add(log)
    piece = SegmentPiece(segment, 1100, 1200, found[100].position, found[110].position)
    storage = Counting(tier)
    assert rows_of(read_segment(storage, piece, ALL, chunk_bytes=1000)) == expected_rows(found, 1100, 1200)
    assert storage.asked_bytes == found[110].position - found[100].position
    assert all((end or 0) + 1 - start <= 1000 for start, end in storage.asked)


def test_reading_continues_after_the_expected_end_if_offsets_are_missing(tier: Tier) -> None:
    log = simple_log(300)
    found = list(batches(log))
    piece = SegmentPiece(tier.add(log), 1100, 1205, found[100].position, found[103].position)
    assert tier.rows(piece, chunk_bytes=1000) == expected_rows(found, 1100, 1205)


def test_without_an_expected_end_two_extra_chunks_are_read(tier: Tier) -> None:
    log = simple_log(300)
    storage = Counting(tier)
    rows = rows_of(read_segment(storage, SegmentPiece(tier.add(log), 100, 200), ALL, chunk_bytes=1000))
    assert len(rows) == 100
    assert storage.asked_bytes <= list(batches(log))[10].position + 2 * 1000


def test_stopping_early_closes_the_stream(tier: Tier) -> None:
    made = read_segment(tier.storage, tier.piece(simple_log(300)), ALL, chunk_bytes=1000)
    assert next(made).num_rows > 0
    made.close()  # type: ignore[attr-defined]  # a generator
    assert list(made) == []


def failure(tier: Tier, piece: SegmentPiece, storage: Any = None) -> KbrokerSourceError:
    """The error of reading a piece. Checks that its message names partition, offset, object and a remedy."""
    with pytest.raises(KbrokerSourceError) as caught:
        rows_of(read_segment(storage or tier.storage, piece, ALL))
    error = caught.value
    text = str(error)
    assert "orders-3 at offset " in text
    assert error.offset is not None
    assert piece.start_offset <= error.offset <= piece.end_offset
    assert str(tier.path(piece.segment).relative_to(tier.root / "tier")) in text
    assert "Remedy: " in text
    return error


@pytest.mark.parametrize("kind", [RemoteStorageError, RetriableRemoteStorageError])
def test_a_store_that_refuses_access_is_unavailable(tier: Tier, kind: type[RemoteStorageError]) -> None:
    storage = Counting(tier)
    storage.failures = [kind("access denied")]
    error = failure(tier, tier.piece(simple_log(1)), storage)
    assert type(error) is StoreUnavailable
    assert "access denied" in str(error)


def test_a_missing_object_is_named(tier: Tier) -> None:
    piece = tier.piece(simple_log(1))
    tier.path(piece.segment).unlink()
    assert type(failure(tier, piece)) is MissingObject


def test_all_rows_below_the_offset_of_an_error_are_returned(tier: Tier) -> None:
    log = simple_log(100)
    piece = tier.piece(log)
    made = read_segment(tier.storage, piece, ("offset",), chunk_bytes=2000)
    rows = rows_of([next(made)])
    tier.path(piece.segment).unlink()
    with pytest.raises(MissingObject) as caught:  # noqa: PT012  (what came before the error counts)
        for batch in made:
            rows += rows_of([batch])
    assert [offset for (offset,) in rows] == list(range(100, caught.value.offset or 0))


def test_an_error_after_the_piece_names_no_returned_row(tier: Tier) -> None:
    # Offsets are missing before the second batch, so the third one has to confirm it.
    log = simple_log(1, start=100) + simple_log(1, start=115) + simple_log(1, start=125)
    end = list(batches(log))[1].position + list(batches(log))[1].size
    storage = Counting(tier)
    made = read_segment(storage, SegmentPiece(tier.add(log), 100, 125, 0, end), ("offset",))
    rows = rows_of([next(made)])
    storage.failures = [RemoteResourceNotFound("gone")]
    with pytest.raises(MissingObject) as caught:
        next(made)
    assert (rows[-1], caught.value.offset) == ((124,), 125)


def test_a_truncated_object_is_damaged(tier: Tier) -> None:
    log = simple_log(3)
    for size in (len(log) - 1, 2 * len(log) // 3, 30):
        piece = tier.piece(log)
        tier.path(piece.segment).write_bytes(log[:size])
        assert type(failure(tier, piece)) is DamagedObject


def flipped(log: bytes, bit: int) -> bytes:
    damaged = bytearray(log)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


# A batch's leader epoch (bytes 12 to 15) is in no row, and no CRC covers it.
ROW_BITS = [bit for bit in range(61 * 8) if not 12 * 8 <= bit < 16 * 8]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("from_position", [False, True])
def test_any_flipped_bit_in_a_header_is_detected(tier: Tier, place: int, from_position: bool) -> None:
    log = simple_log(3, per_batch=4)
    found = list(batches(log))
    batch = found[place]
    piece = tier.piece(log, batch.base_offset, batch.next_offset, batch.position if from_position else 0)
    for bit in ROW_BITS:
        tier.path(piece.segment).write_bytes(flipped(log, batch.position * 8 + bit))
        assert isinstance(failure(tier, piece), DamagedObject), bit


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("start", [103, 107])
def test_a_first_batch_with_wrong_offsets_gives_no_row(tier: Tier, start: int, count: int) -> None:
    log = simple_log(3, per_batch=4)  # 100 to 103, 104 to 107, 108 to 111
    found = list(batches(log))
    # As the index has it: the last batch that ends at or before the piece's start.
    first = found[(start - 103) // 4]
    piece = tier.piece(log, start, start + count, first.position)
    assert tier.rows(piece) == expected_rows(found, start, start + count)
    for bit in range(64):
        tier.path(piece.segment).write_bytes(flipped(log, first.position * 8 + bit))
        assert isinstance(failure(tier, piece), DamagedObject), bit


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=logs(), data=st.data())
def test_damaged_bytes_give_an_error_or_the_stored_rows(tier: Tier, log: bytes, data: st.DataObject) -> None:
    segment = tier.add(log)
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log) - 1))
        damaged[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8)).ljust(min(8, len(log) - at), b"\xff")
    tier.path(segment).write_bytes(damaged)
    found = list(batches(log))
    piece = SegmentPiece(segment, segment.start_offset, segment.end_offset + 1)
    has_gaps = any(one.next_offset != other.base_offset for one, other in pairwise(found))
    with suppress(KbrokerSourceError):
        rows = tier.rows(piece)
        # A batch may have moved within the gap next to it, which the object does not reveal.
        assert has_gaps or rows == expected_rows(found, segment.start_offset, segment.end_offset + 1)


def test_an_unknown_codec_is_named(tier: Tier) -> None:
    log = bytearray(simple_log(1))
    log[22] |= 5
    set_max_timestamp(log, 0, max_timestamp=0, is_log_append_time=False)
    error = failure(tier, tier.piece(bytes(log)))
    assert type(error) is UnknownCodec
    assert "codec is 5" in str(error)


def of_payload(payload: bytes, *, count: int, codec: Codec = Codec.NONE) -> bytes:
    header = build_batch(
        [], base_offset=100, partition_leader_epoch=0, last_offset_delta=count - 1, base_timestamp=0, max_timestamp=0,
        record_count=count,
    )  # fmt: skip
    return bytes(with_payload(RecordBatch(header), payload, codec))


GOOD = build_batch([Record(-1, 0, b"k", b"v", (("n", b"w"),))])[61:]
# length, attributes, timestamp delta, offset delta, key length and key, value length and value, headers
HOSTILE = {
    "negative record length": b"\x01" + GOOD[1:],
    "record length behind the end": b"\x7e" + GOOD[1:],
    "huge record length": b"\xfe\xff\xff\xff\x0f" + GOOD[1:],
    "record length of six bytes": b"\x80\x80\x80\x80\x80\x01" + GOOD[1:],
    "key length behind the end": GOOD[:4] + b"\x7e" + GOOD[5:],
    "negative key length": GOOD[:4] + b"\x03" + GOOD[5:],
    "value length behind the end": GOOD[:6] + b"\x7e" + GOOD[7:],
    "huge value length": b"\x1c" + GOOD[1:6] + b"\xfe\xff\xff\xff\x0f" + GOOD[8:],
    "negative count of headers": GOOD[:8] + b"\x01" + GOOD[9:],
    "too many headers": GOOD[:8] + b"\x7e" + GOOD[9:],
    "one header too few": GOOD[:8] + b"\x00" + GOOD[9:],
    "one header too many": b"\x1e" + GOOD[1:8] + b"\x06" + GOOD[9:] + b"\x00\x00",
    "header without a name": GOOD[:9] + b"\x01" + GOOD[10:],
    "header name behind the end": GOOD[:9] + b"\x7e" + GOOD[10:],
    "offset outside of the batch": GOOD[:3] + b"\x02" + GOOD[4:],
    "negative offset": GOOD[:3] + b"\x01" + GOOD[4:],
    "surplus bytes": GOOD + b"\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_hostile_records_with_a_valid_crc_are_damaged(tier: Tier, payload: bytes, codec: Codec) -> None:
    from wire.compression import compress

    bad = of_payload(compress(codec, payload), count=1, codec=codec)
    after = simple_log(1, start=101)
    assert type(failure(tier, tier.piece(bad + after))) is DamagedObject
    before = simple_log(1, start=90)
    error = failure(tier, tier.piece(before + bad + after))
    assert type(error) is DamagedObject
    assert error.offset == 100


@pytest.mark.parametrize("count", [2, 0x7FFF_FFFF, -1])
def test_a_false_record_count_is_damaged_and_allocates_no_memory(tier: Tier, count: int) -> None:
    batch = bytearray(of_payload(GOOD, count=1))
    struct.pack_into(">i", batch, 57, count)
    set_max_timestamp(batch, 0, max_timestamp=0, is_log_append_time=False)
    assert type(failure(tier, tier.piece(bytes(batch)))) is DamagedObject


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_a_decompression_bomb_is_damaged_before_it_is_decoded(tier: Tier, codec: Codec) -> None:
    from wire.compression import compress
    from wire.record_batch import MAX_DECOMPRESSED_BYTES

    bomb = of_payload(compress(codec, bytes(MAX_DECOMPRESSED_BYTES + 1)), count=1, codec=codec)
    error = failure(tier, tier.piece(bomb))
    assert type(error) is DamagedObject
    assert "decodes to" in str(error)


def test_a_batch_longer_than_its_segment_is_damaged(tier: Tier) -> None:
    log = bytearray(simple_log(2))
    piece = tier.piece(bytes(log))
    struct.pack_into(">i", log, 8, 0x7FFF_FFF0)
    tier.path(piece.segment).write_bytes(log)
    assert "there are" in str(failure(tier, piece))


@pytest.mark.parametrize("timestamp", [2**62, -(2**62)])
def test_an_unrepresentable_timestamp_fails_only_if_selected(tier: Tier, timestamp: int) -> None:
    log = build_batch([Record(-1, timestamp, None, b"v")], base_offset=100)
    piece = tier.piece(log)
    assert type(failure(tier, piece)) is UnrepresentableRecord
    assert tier.rows(piece, ("value", "offset")) == [(b"v", 100)]


def test_an_object_with_other_offsets_is_damaged(tier: Tier) -> None:
    piece = tier.piece(simple_log(2, start=100))
    tier.path(piece.segment).write_bytes(simple_log(2, start=500))
    assert type(failure(tier, piece)) is DamagedObject
    tier.path(piece.segment).write_bytes(simple_log(2, start=90))
    assert type(failure(tier, piece)) is DamagedObject


def test_gaps_left_by_compaction_are_not_damage(tier: Tier) -> None:
    parts = [bytearray(simple_log(1, per_batch=3)) for _ in range(4)]
    for part, offset in zip(parts, (100, 110, 130, 140), strict=True):
        struct.pack_into(">q", part, 0, offset)
    log = b"".join(parts)
    found = list(batches(log))
    segment = tier.add(log, end_offset=160)
    for start in range(100, 161, 7):
        for position in {0, *(batch.position for batch in found if batch.base_offset <= start)}:
            for end in (start, start + 20, 161):
                piece = SegmentPiece(segment, start, min(end, 161), position)
                assert tier.rows(piece) == expected_rows(found, start, min(end, 161))


def test_invalid_utf_8_in_header_names_is_replaced(tier: Tier) -> None:
    record = Record(-1, 0, None, b"v", (("good", b"1"), ("\udcff!", None)))
    rows = tier.rows(tier.piece(build_batch([record], base_offset=100)), ("headers",))
    assert rows == [([{"key": "good", "value": b"1"}, {"key": "\ufffd!", "value": None}],)]


def test_control_batches_are_not_rows(tier: Tier) -> None:
    marker = build_batch(
        [Record(-1, 0, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        base_offset=110,
        is_control=True,
        is_transactional=True,
        producer_id=1,
        producer_epoch=0,
    )
    log = simple_log(1) + marker + simple_log(1, start=111)
    assert [row[4] for row in tier.rows(tier.piece(log))] == [*range(100, 110), *range(111, 121)]


def big_log(total: int, codec: Codec) -> Iterator[bytes]:
    for index in range(total // 100):
        yield build_batch(
            [Record(-1, 0, b"k", bytes(1000)) for _ in range(100)], base_offset=100 + index * 100, codec=codec
        )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_an_arrow_batch_is_not_much_larger_than_a_chunk(tier: Tier, codec: Codec) -> None:
    piece = tier.piece(b"".join(big_log(10_000, codec)))
    sizes = [made.nbytes for made in read_segment(tier.storage, piece, ("value",), chunk_bytes=1 << 20)]
    assert sum(sizes) > 10_000_000
    assert max(sizes) < 2.5 * (1 << 20)
