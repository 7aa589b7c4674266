from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.batch_header import CRC_START, HEADER_SIZE, POSITIONS
from wire.compression import Codec
from wire.errors import Malformed
from wire.record_batch import (
    LegacyMagic,
    Record,
    RecordBatch,
    batches,
    build_batch,
    read_varint,
    set_max_timestamp,
)

NOW = 1_700_000_000_000

header_lists = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
record_lists = st.lists(
    st.builds(
        Record,
        offset=st.just(-1),
        timestamp=st.integers(NOW - 10**9, NOW + 10**9),
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=200),
        headers=header_lists,
    ),
    min_size=1,
    max_size=20,
)


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


@given(record_lists, st.sampled_from(Codec), st.integers(0, 1 << 60))
@settings(max_examples=60, deadline=None)
def test_records_survive_a_round_trip(records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = RecordBatch(build_batch(records, base_offset=base_offset, codec=codec))
    assert batch.crc_is_valid()
    assert batch.codec is codec
    assert list(batch.records()) == numbered(records, base_offset)
    assert batch.record_count == len(records)
    assert batch.last_offset == base_offset + len(records) - 1 == batch.next_offset - 1
    assert batch.base_timestamp == records[0].timestamp
    assert batch.max_timestamp == max(record.timestamp for record in records)


def test_every_header_field_is_at_its_place() -> None:
    built = build_batch(
        [Record(timestamp=NOW), Record(timestamp=NOW + 5)],
        base_offset=0x0102030405060708,
        partition_leader_epoch=9,
        codec=Codec.GZIP,
        producer_id=11,
        producer_epoch=12,
        base_sequence=13,
        is_transactional=True,
        is_control=True,
        log_append_time=NOW + 7,
    )
    batch = RecordBatch(b"xyz" + built, 3)
    assert struct.unpack_from(">qiib", built) == (0x0102030405060708, len(built) - 12, 9, 2)
    assert (batch.position, batch.size, batch.is_whole) == (3, len(built), True)
    assert (batch.base_offset, batch.partition_leader_epoch, batch.magic) == (0x0102030405060708, 9, 2)
    assert batch.attributes == 0b11_1001
    assert batch.is_log_append_time
    assert batch.is_transactional
    assert batch.is_control
    assert not batch.has_delete_horizon
    assert (batch.last_offset_delta, batch.record_count) == (1, 2)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW + 7)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (11, 12, 13, 14)
    assert bytes(batch.data) == built
    assert bytes(batch.payload) == built[HEADER_SIZE:]
    assert batch.crc == crc32c(built[CRC_START:])
    assert batch.crc_is_valid()
    # A consumer gives every record of such a batch the broker's time.
    assert [record.timestamp for record in batch.records()] == [NOW + 7, NOW + 7]


# Two records as MemoryRecords.withRecords of kafka-clients 4.3.1 writes them: producer id 4567, epoch 3, sequence 10.
JAVA_BATCHES = {
    Codec.NONE: bytes.fromhex(
        "000000000000000000000075000000000260082b130000000000010000018bcfe568000000018bcfe5680100000000000011"
        "d700030000000a0000000236000000012a76616c75652030206f6620746865207265636f7264004e0002020a6b65792d312a"
        "76616c75652031206f6620746865207265636f72640402680276026e01"
    ),
    Codec.GZIP: bytes.fromhex(
        "000000000000000000000078000000000279b30ab60001000000010000018bcfe568000000018bcfe5680100000000000011"
        "d700030000000a000000021f8b08000000000000ff3363606060d42a4bcc294d553050c84f5328c94855284a4dce2f4a61f0"
        "636062e2ca4eadd435842a304455c0c294c154c694c7080092827c9344000000"
    ),
    Codec.SNAPPY: bytes.fromhex(
        "000000000000000000000080000000000217e02c730002000000010000018bcfe568000000018bcfe5680100000000000011"
        "d700030000000a0000000282534e415050590000000001000000010000003b44a036000000012a76616c75652030206f6620"
        "746865207265636f7264004e0002020a6b65792d312a7661012100313621001c0402680276026e01"
    ),
    Codec.LZ4: bytes.fromhex(
        "0000000000000000000000770000000002559638c50003000000010000018bcfe568000000018bcfe5680100000000000011"
        "d700030000000a0000000204224d1860408237000000f31736000000012a76616c75652030206f6620746865207265636f72"
        "64004e0002020a6b65792d3121001a312100800402680276026e0100000000"
    ),
    Codec.ZSTD: bytes.fromhex(
        "00000000000000000000007600000000024dcd077f0004000000010000018bcfe568000000018bcfe5680100000000000011"
        "d700030000000a0000000228b52ffd0058cc0100f40236000000012a76616c75652030206f6620746865207265636f726400"
        "4e0002020a6b65792d31310402680276026e010200400a13573d01010000"
    ),
}
JAVA_RECORDS = [
    Record(0, NOW, None, b"value 0 of the record", ()),
    Record(1, NOW + 1, b"key-1", b"value 1 of the record", (("h", b"v"), ("n", None))),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_that_kafkas_java_classes_wrote_are_read(codec: Codec) -> None:
    batch = RecordBatch(JAVA_BATCHES[codec])
    assert batch.crc_is_valid()
    assert batch.codec is codec
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4567, 3, 10)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW + 1)
    assert list(batch.records()) == JAVA_RECORDS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_are_written_as_kafkas_java_classes_do(codec: Codec) -> None:
    """Byte for byte, if the libraries make the same choices; the others are compared by content."""
    built = build_batch(
        JAVA_RECORDS, codec=codec, producer_id=4567, producer_epoch=3, base_sequence=10, partition_leader_epoch=0
    )
    assert built == JAVA_BATCHES[codec]


@pytest.mark.parametrize(
    ("base_sequence", "count", "last_sequence"),
    [(-1, 3, -1), (0, 1, 0), (5, 3, 7), (0x7FFFFFFF, 1, 0x7FFFFFFF), (0x7FFFFFFE, 4, 1)],
)
def test_a_sequence_wraps_to_zero_after_the_greatest_int32(base_sequence: int, count: int, last_sequence: int) -> None:
    batch = RecordBatch(build_batch([Record()] * count, base_sequence=base_sequence))
    assert batch.last_sequence == last_sequence


def test_offsets_with_gaps_survive_a_round_trip() -> None:
    kept = [Record(100, NOW, b"a", b"1"), Record(104, NOW, b"b", b"2")]
    batch = RecordBatch(build_batch(kept, base_offset=98, last_offset_delta=9))
    assert (batch.last_offset, batch.record_count) == (107, 2)
    assert list(batch.records()) == kept


@given(record_lists, st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_is_found_by_crc_or_header(records: list[Record], data: st.DataObject) -> None:
    built = bytearray(build_batch(records))
    position = data.draw(st.integers(8, len(built) - 1))
    built[position] ^= data.draw(st.integers(1, 255))
    if 12 <= position < 16:  # the leader epoch is outside the CRC, each broker sets it
        assert RecordBatch(built).crc_is_valid()
        return
    try:
        assert not RecordBatch(built).crc_is_valid()
    except Malformed:
        assert position < POSITIONS["crc"]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_new_max_timestamp_gets_a_new_crc(codec: Codec) -> None:
    records = numbered([Record(timestamp=NOW), Record(timestamp=NOW + 1)])
    patched = bytearray(b"." + build_batch(records, codec=codec, is_transactional=True))
    set_max_timestamp(patched, 1, max_timestamp=NOW + 50, is_log_append_time=True)
    batch = RecordBatch(patched, 1)
    assert (batch.max_timestamp, batch.is_log_append_time, batch.is_transactional) == (NOW + 50, True, True)
    assert batch.codec is codec
    assert batch.crc_is_valid()
    set_max_timestamp(patched, 1, max_timestamp=NOW + 1, is_log_append_time=False)
    assert patched == b"." + build_batch(records, codec=codec, is_transactional=True)


def test_batches_are_found_one_after_the_other() -> None:
    first, second = build_batch([Record(value=b"1")]), build_batch([Record(value=b"22")] * 3, base_offset=1)
    found = batches(first + second)
    assert [(batch.position, batch.record_count) for batch in found] == [(0, 1), (len(first), 3)]
    assert (found.position, found.error) == (len(first + second), None)
    assert list(found) == []
    assert [batch.base_offset for batch in batches(first + second, len(first))] == [1]


@pytest.mark.parametrize("left", [1, 11, 12, 17, 60, 61, 65])
def test_a_cut_batch_ends_the_iteration_before_it(left: int) -> None:
    built = build_batch([Record(value=b"1")])
    found = batches(built + built[:left])
    assert len(list(found)) == 1
    assert found.position == len(built)
    assert found.error is not None


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 48, (1 << 31) - 1])
def test_a_wrong_length_is_malformed(length: int) -> None:
    built = bytearray(build_batch([Record(value=b"1")]))
    struct.pack_into(">i", built, 8, length)
    found = batches(built)
    assert list(found) == []
    assert isinstance(found.error, Malformed)
    assert not isinstance(found.error, LegacyMagic)
    if length > 48:
        batch = RecordBatch(built)
        assert not batch.is_whole
        assert not batch.crc_is_valid()
        with pytest.raises(Malformed):
            _ = batch.data
        with pytest.raises(Malformed):
            _ = batch.payload


def test_messages_of_the_old_formats_are_refused_by_name() -> None:
    # offset, size, crc, magic, attributes, (timestamp,) null key, null value
    for magic, old in (
        (0, struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)),
        (1, struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, NOW, -1, -1)),
    ):
        found = batches(old)
        assert list(found) == []
        assert isinstance(found.error, LegacyMagic)
        assert f"format {magic}" in str(found.error)
        with pytest.raises(LegacyMagic):
            RecordBatch(old + bytes(100))


def test_zeros_are_not_an_old_message() -> None:
    for size in (20, 100):
        found = batches(bytes(size))
        assert list(found) == []
        assert not isinstance(found.error, LegacyMagic)


def test_an_unknown_format_is_malformed() -> None:
    built = bytearray(build_batch([Record()]))
    built[16] = 3
    with pytest.raises(Malformed, match="format 3"):
        RecordBatch(built)


def test_an_unknown_codec_is_malformed_on_use() -> None:
    built = bytearray(build_batch([Record()]))
    built[22] = 5
    batch = RecordBatch(built)
    with pytest.raises(Malformed, match="codec 5"):
        _ = batch.codec


def with_payload(payload: bytes, count: int = 1) -> RecordBatch:
    body = struct.pack(">hiqqqhii", 0, count - 1, NOW, NOW, -1, -1, -1, count) + payload
    return RecordBatch(struct.pack(">qiibI", 0, len(body) + 9, 0, 2, crc32c(body)) + body)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("", id="nothing"),
        pytest.param("0e", id="length beyond the end"),
        pytest.param("01", id="negative length"),
        pytest.param("ffffffff7f", id="length beyond 32 bits"),
        pytest.param("0c 00 00 00 01 01 00 00", id="bytes after the last record"),
        pytest.param("0c 00 00 00 08 01 00", id="key beyond the record"),
        pytest.param("0c 00 00 00 03 01 00", id="key length of -2"),
        pytest.param("0c 00 00 00 01 08 00", id="value beyond the record"),
        pytest.param("0e 00 00 00 01 01 00 00", id="fields shorter than the record"),
        pytest.param("0c 00 00 00 01 01 02", id="header missing"),
        pytest.param("0c 00 00 00 01 01 01", id="negative header count"),
        pytest.param("10 00 00 00 01 01 02 01 01", id="header without a name"),
        pytest.param("14 00 00 00 01 01 feffffff0f", id="2^31-1 headers"),
        pytest.param("0c 00 00 80", id="cut inside a varint"),
    ],
)
def test_a_wrong_record_is_malformed(payload: str) -> None:
    with pytest.raises(Malformed):
        list(with_payload(bytes.fromhex(payload)).records())


@pytest.mark.parametrize(
    ("encoded", "bits", "value"),
    [
        ("00", 32, 0),
        ("01", 32, -1),
        ("02", 32, 1),
        ("ac02", 32, 150),
        ("feffffff0f", 32, (1 << 31) - 1),
        ("ffffffff0f", 32, -(1 << 31)),
        ("ffffffffffffffffff01", 64, -(1 << 63)),
        ("feffffffffffffffff01", 64, (1 << 63) - 1),
        ("8000", 32, 0),
    ],
)
def test_varints_are_zigzag(encoded: str, bits: int, value: int) -> None:
    data = bytes.fromhex(encoded)
    assert read_varint(b"\0" + data, 1, bits) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("encoded", "bits"),
    [("", 32), ("80", 32), ("8080808080", 32), ("ffffffff1f", 32), ("ff" * 9 + "02", 64), ("ff" * 11, 64)],
)
def test_varints_that_are_cut_or_too_wide_are_malformed(encoded: str, bits: int) -> None:
    with pytest.raises(Malformed):
        read_varint(bytes.fromhex(encoded), 0, bits)


def test_a_decompressed_size_is_bounded() -> None:
    batch = RecordBatch(build_batch([Record(value=bytes(10_000))], codec=Codec.ZSTD))
    with pytest.raises(Malformed, match="more than 9000"):
        list(batch.records(max_bytes=9000))


def test_a_batch_has_a_repr() -> None:
    assert repr(RecordBatch(build_batch([Record()] * 2, base_offset=5))).startswith(
        "<RecordBatch offsets 5-6, epoch -1"
    )


def test_unused_attribute_bits_are_cleared_with_the_timestamp_type() -> None:
    built = bytearray(build_batch([Record(timestamp=NOW)], is_transactional=True))
    built[21:23] = b"\x71\xd4"
    set_max_timestamp(built, max_timestamp=NOW, is_log_append_time=True)
    assert RecordBatch(built).attributes == 0b0101_1100
