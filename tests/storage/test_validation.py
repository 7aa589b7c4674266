"""Each validation rule for produced batches, with the error codes of Kafka 4.3.1."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from kbroker.storage.log_config import LogConfig
from kbroker.storage.validation import (
    CHEAP_RECORDS,
    ProducedBatch,
    RecordsRefused,
    is_cheap,
    validate_produced,
)
from tests.storage.validating import (
    APPEND_TIME,
    COMPACTED,
    CONFIG,
    GOOD,
    NOW,
    ONE,
    THREE,
    ZSTD,
    changed,
    check,
    of_payload,
    refusal,
)
from tests.wire.test_compression import bomb
from wire.batch_header import HEADER_SIZE
from wire.compression import Codec, compress
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, RecordBatch, build_batch


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("records", [ONE, THREE, [Record(timestamp=NOW, value=b"x" * 100)] * 500])
def test_a_valid_batch_is_stored_as_sent(codec: Codec, records: list[Record]) -> None:
    built = build_batch(records, codec=codec, producer_id=3, producer_epoch=0, base_sequence=7)
    taken = check(built)
    assert bytes(taken.data) == built
    assert taken.log_append_time == -1
    assert taken.batch.max_timestamp == max(record.timestamp for record in records)
    assert (taken.batch.base_sequence, taken.batch.record_count) == (7, len(records))


def test_writable_bytes_are_changed_in_place_and_others_copied() -> None:
    frame = bytearray(b"...." + GOOD + b"...")
    taken = check(memoryview(frame)[4:-3], APPEND_TIME)
    assert bytes(frame[4:-3]) == bytes(taken.data) != GOOD
    assert frame[:4] == b"...."
    taken = check(memoryview(GOOD), APPEND_TIME)
    assert bytes(taken.data) != GOOD
    assert taken.batch.crc_is_valid()
    assert check(memoryview(GOOD)).data.obj is GOOD


def test_changing_the_base_offset_keeps_the_crc_valid() -> None:
    taken = check(bytearray(GOOD))
    taken.data[0:8] = (55).to_bytes(8, "big")
    assert RecordBatch(taken.data).base_offset == 55
    assert RecordBatch(taken.data).crc_is_valid()


REFUSED = [
    # protocol step 3: what Kafka checks while it parses
    pytest.param(None, ErrorCode.INVALID_RECORD, "null", id="null"),
    pytest.param(b"", ErrorCode.INVALID_RECORD, "no complete", id="empty"),
    pytest.param(GOOD[:5], ErrorCode.INVALID_RECORD, "no complete", id="cut in the offset"),
    pytest.param(GOOD[:14], ErrorCode.INVALID_RECORD, "no complete", id="cut in the header"),
    pytest.param(GOOD[:-1], ErrorCode.INVALID_RECORD, "no complete", id="cut by a byte"),
    pytest.param(GOOD + GOOD, ErrorCode.INVALID_RECORD, "more than one", id="two batches"),
    pytest.param(changed(GOOD, 16, b"\x03"), ErrorCode.CORRUPT_MESSAGE, "format 3", id="magic 3"),
    pytest.param(changed(GOOD, 16, b"\xff"), ErrorCode.CORRUPT_MESSAGE, "format -1", id="magic -1"),
    pytest.param(changed(GOOD, 16, b"\x01"), ErrorCode.INVALID_RECORD, "format 1", id="magic 1"),
    pytest.param(changed(GOOD, 16, b"\x00"), ErrorCode.INVALID_RECORD, "format 0", id="magic 0"),
    # step 4
    pytest.param(build_batch(ONE, base_offset=1), ErrorCode.INVALID_RECORD, "base offset", id="base offset"),
    pytest.param(changed(GOOD, 17, b"\0\0\0\0", new_crc=False), ErrorCode.CORRUPT_MESSAGE, "CRC", id="crc"),
    pytest.param(GOOD[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE, "CRC", id="changed record"),
    # step 5
    pytest.param(build_batch(ONE, record_count=0), ErrorCode.INVALID_RECORD, "0 records", id="count 0"),
    pytest.param(build_batch(ONE, record_count=-1), ErrorCode.INVALID_RECORD, "-1 records", id="count -1"),
    pytest.param(build_batch(ONE, record_count=2), ErrorCode.INVALID_RECORD, "2 records", id="count too great"),
    pytest.param(build_batch(THREE, last_offset_delta=3), ErrorCode.INVALID_RECORD, "delta of 3", id="last offset"),
    pytest.param(
        build_batch(THREE, last_offset_delta=-1, record_count=0), ErrorCode.INVALID_RECORD, "0 records", id="no records"
    ),
    pytest.param(
        build_batch(THREE, last_offset_delta=3, record_count=4), ErrorCode.INVALID_RECORD, "record 3", id="one missing"
    ),
    pytest.param(
        build_batch(THREE, last_offset_delta=1, record_count=2),
        ErrorCode.INVALID_RECORD,
        "after the last of",
        id="one too many",
    ),
    pytest.param(build_batch(ONE, is_control=True), ErrorCode.INVALID_RECORD, "control", id="control batch"),
    pytest.param(
        build_batch(ONE, producer_id=7, producer_epoch=0), ErrorCode.INVALID_RECORD, "sequence number -1", id="sequence"
    ),
    # step 7, and records that no consumer could read
    pytest.param(
        build_batch([Record(offset=0, timestamp=NOW), Record(offset=2, timestamp=NOW)], last_offset_delta=1),
        ErrorCode.INVALID_RECORD,
        "record 1: its offset delta is 2",
        id="offset deltas",
    ),
    pytest.param(of_payload(b"\x0e" + GOOD[62:]), ErrorCode.INVALID_RECORD, "record 0", id="length of a record"),
    # step 8
    pytest.param(of_payload(GOOD[61:], codec=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 5", id="codec 5"),
    pytest.param(of_payload(GOOD[61:], codec=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 7", id="codec 7"),
]


@pytest.mark.parametrize(("records", "code", "words"), REFUSED)
def test_w5_an_invalid_batch_is_refused_with_kafkas_code(records: bytes | None, code: ErrorCode, words: str) -> None:
    error = refusal(records)
    assert error.code is code
    assert words in error.message
    assert not isinstance(error, RecordsRefused)


@pytest.mark.parametrize("length", [-(1 << 31), -13, -1, 0, 13, 48])
def test_w5_an_impossible_length_is_corrupt(length: int) -> None:
    assert refusal(changed(GOOD, 8, struct.pack(">i", length))).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [len(GOOD) - 11, 1 << 20, (1 << 31) - 1])
def test_w5_a_length_beyond_the_bytes_leaves_no_complete_batch(length: int) -> None:
    assert refusal(changed(GOOD, 8, struct.pack(">i", length))).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("behind", [b"x", bytes(11), GOOD[:14], GOOD[:40], GOOD[:-1]])
def test_an_incomplete_second_batch_is_dropped_as_in_kafka(behind: bytes) -> None:
    assert bytes(check(GOOD + behind).data) == GOOD


@pytest.mark.parametrize("behind", [bytes(12), bytes(70), b"\xff" * 12])
def test_trailing_bytes_that_start_no_batch_are_corrupt(behind: bytes) -> None:
    assert refusal(GOOD + behind).code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [3, 6])
def test_w5_zstd_needs_version_7(version: int) -> None:
    assert refusal(ZSTD, version=version).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    # checked before everything else, because Kafka checks it while it parses the request
    assert refusal(changed(ZSTD, 17, b"\0" * 4, new_crc=False), version=6).code is (
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )
    assert check(ZSTD, version=7).batch.codec is Codec.ZSTD
    assert check(build_batch(ONE, codec=Codec.LZ4), version=version).batch.codec is Codec.LZ4


def test_w5_the_size_limit_is_checked_before_the_crc() -> None:
    config = replace(CONFIG, max_message_bytes=len(GOOD) - 1)
    assert refusal(GOOD, config).code is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(changed(GOOD, 17, b"\0" * 4, new_crc=False), config).code is ErrorCode.MESSAGE_TOO_LARGE
    assert check(GOOD, replace(CONFIG, max_message_bytes=len(GOOD))).batch.size == len(GOOD)


def test_w5_segment_bytes_is_checked_last() -> None:
    config = replace(CONFIG, segment_bytes=len(GOOD) - 1)
    assert refusal(GOOD, config).code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert refusal(changed(GOOD, 17, b"\0" * 4, new_crc=False), config).code is ErrorCode.CORRUPT_MESSAGE
    assert check(GOOD, replace(CONFIG, segment_bytes=len(GOOD))).batch.size == len(GOOD)


@pytest.mark.parametrize("codec", list(Codec))
def test_w5_a_compacted_topic_requires_keys(codec: Codec) -> None:
    records = [Record(timestamp=NOW, key=None if i in (1, 3) else b"") for i in range(5)]
    error = refusal(build_batch(records, codec=codec), COMPACTED)
    assert error.code is ErrorCode.INVALID_RECORD
    assert isinstance(error, RecordsRefused)
    words = "Compacted topic cannot accept message without key in topic partition orders-0"
    assert [(wrong.batch_index, wrong.message) for wrong in error.record_errors] == [(1, words), (3, words)]
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{words}')" for index in (1, 3))
    assert error.message == (
        "One or more records have been rejected due to 2 record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    assert check(build_batch(records, codec=codec)).batch.record_count == 5
    assert check(build_batch(THREE, codec=codec), COMPACTED).batch.record_count == 3


TARGETS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD, "uncompressed": Codec.NONE}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("source", list(Codec))
def test_compression_type_decides_the_stored_codec(name: str, source: Codec) -> None:
    built = build_batch(THREE * 20, codec=source, producer_id=5, producer_epoch=1, base_sequence=3)
    taken = check(built, replace(CONFIG, compression_type=name))
    assert taken.batch.codec is TARGETS[name]
    assert taken.batch.crc_is_valid()
    assert list(taken.batch.records()) == list(RecordBatch(built).records())
    assert (taken.batch.producer_id, taken.batch.producer_epoch, taken.batch.base_sequence) == (5, 1, 3)
    assert taken.data.readonly == (TARGETS[name] is source)
    if TARGETS[name] is source:
        assert bytes(taken.data) == built


def test_recompression_uses_the_topics_level() -> None:
    text = [Record(timestamp=NOW, value=b"%d and some text" % (i * i)) for i in range(2000)]
    built = build_batch(text)
    sizes = [
        check(built, replace(CONFIG, compression_type="zstd", compression_zstd_level=level)).batch.size
        for level in (1, 19)
    ]
    assert sizes[0] > sizes[1]


def test_the_size_limit_applies_after_recompression() -> None:
    built = build_batch([Record(timestamp=NOW, value=bytes(5000))], codec=Codec.ZSTD)
    config = replace(CONFIG, compression_type="uncompressed", max_message_bytes=1000)
    assert refusal(built, config).code is ErrorCode.MESSAGE_TOO_LARGE
    assert check(built, replace(config, compression_type="producer")).batch.size < 1000


def test_recompressed_records_in_an_append_time_topic_are_stamped() -> None:
    taken = check(build_batch(THREE), replace(APPEND_TIME, compression_type="lz4"))
    assert taken.batch.is_log_append_time
    assert taken.batch.crc_is_valid()
    assert [record.timestamp for record in taken.batch.records()] == [NOW] * 3


@pytest.mark.parametrize("codec", list(Codec)[1:])
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(lambda packed: b"", id="nothing"),
        pytest.param(lambda packed: b"this is not compressed", id="something else"),
        pytest.param(lambda packed: packed[:-1], id="cut off"),
        pytest.param(lambda packed: packed + b"\0", id="bytes behind"),
    ],
)
def test_w5_a_block_that_does_not_decode_is_an_invalid_record(codec: Codec, block: object) -> None:
    packed = build_batch(THREE * 50, codec=codec)[HEADER_SIZE:]
    assert callable(block)
    error = refusal(of_payload(block(packed), codec=codec, count=150))
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.message.endswith("in topic partition orders-0")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", ["fe ff ff ff 0f", "ff ff ff ff 0f", "c8 01", "01"])
def test_w7_an_impossible_number_of_headers_is_an_invalid_record(codec: Codec, count: str) -> None:
    fields = bytes.fromhex("00 00 00 01 02 61" + count)
    record = bytes((2 * len(fields),)) + fields
    error = refusal(of_payload(compress(codec, record), codec=codec))
    assert error.code is ErrorCode.INVALID_RECORD
    assert "number of headers" in error.message


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_w6_a_bomb_is_an_invalid_record(codec: Codec) -> None:
    built = of_payload(bomb(codec, 40), codec=codec)
    config = replace(CONFIG, max_message_bytes=1 << 30)
    assert not is_cheap(built, config)
    assert refusal(built, config).code is ErrorCode.INVALID_RECORD
    # zeros are records of length 0; a long value of zeros reaches the limit
    value_bytes = 40 << 20
    body = bytes(3) + b"\x01" + varint(value_bytes) + bytes(value_bytes) + b"\0"
    packed = compress(codec, varint(len(body)) + body)
    large = of_payload(packed, codec=codec)
    with pytest.raises(KafkaError, match=r"more than 31457280|decodes to") as caught:
        validate_produced(large, api_version=9, config=config, timestamp_ms=NOW, max_decompressed_bytes=30 << 20)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert check(large, config).batch.size == len(large)


def varint(value: int) -> bytes:
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


MEASURE = """
import re, sys
from kbroker.storage.log_config import LogConfig
from kbroker.storage.validation import validate_produced
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
data = open(sys.argv[1], "rb").read()
before = peak()
taken = validate_produced(data, api_version=9, config=LogConfig(max_message_bytes=1 << 30), timestamp_ms=0)
print(peak() - before, taken.batch.record_count)
"""


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_w6_a_batch_that_decodes_to_100_mib_takes_little_memory(codec: Codec, tmp_path: Path) -> None:
    """Measured in a separate process, so that its peak is not that of other tests."""
    path = tmp_path / "batch"
    path.write_bytes(build_batch([Record(timestamp=0, value=bytes(1 << 20))] * 100, codec=codec, level=FASTEST[codec]))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    grown_kib, count = map(int, done.stdout.split())
    assert count == 100
    assert 0 < grown_kib < 16 << 10


FASTEST = {Codec.GZIP: 1, Codec.SNAPPY: None, Codec.LZ4: 9, Codec.ZSTD: 1}


def test_is_cheap_only_below_the_limits() -> None:
    many = [Record(timestamp=NOW, value=b"v")] * (CHEAP_RECORDS + 1)
    assert is_cheap(GOOD, CONFIG)
    assert is_cheap(build_batch(many[:-1]), CONFIG)
    assert not is_cheap(build_batch(many), CONFIG)
    assert is_cheap(build_batch([Record(timestamp=NOW, value=bytes(1000))] * 900), CONFIG)
    for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, Codec.GZIP):
        assert is_cheap(build_batch(THREE, codec=codec), CONFIG)
        assert not is_cheap(build_batch(many, codec=codec), CONFIG)
        assert not is_cheap(build_batch(many, codec=codec), replace(CONFIG, compression_type="zstd"))
    assert is_cheap(build_batch(THREE), replace(CONFIG, compression_type="gzip"))


def test_is_cheap_for_bytes_that_are_no_batch() -> None:
    for records in (None, b"", GOOD[:30], bytes(100), changed(GOOD, 16, b"\x01"), changed(GOOD, 22, b"\x07")):
        assert is_cheap(records, CONFIG)
        assert refusal(records).code is not ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_is_refused_or_harmless(seed: int) -> None:
    """A batch with changed bytes and a valid CRC is refused with an expected code, or all its records can be read."""
    source = random.Random(seed)
    refused = accepted = 0
    for _ in range(150):
        codec = source.choice([Codec.NONE, *Codec])
        built = bytearray(build_batch(THREE * source.choice([1, 10, 60]), codec=codec))
        at = source.randrange(8, len(built))
        built[at] = (built[at] + source.choice([1, 2, 64, 128, 255])) % 256
        struct.pack_into(">I", built, 17, crc32c(bytes(built[21:])))
        taken, code = outcome(bytes(built), source.choice([CONFIG, APPEND_TIME, COMPACTED]))
        if taken is None:
            refused += 1
            assert code in (2, 10, 32, 76, 87)
        else:
            accepted += 1
            records = list(taken.batch.records())
            assert [record.offset for record in records] == list(range(taken.batch.record_count))
            assert taken.batch.crc_is_valid()
    assert min(refused, accepted) > 10


def outcome(built: bytes, config: LogConfig) -> tuple[ProducedBatch | None, ErrorCode]:
    try:
        return check(built, config), ErrorCode.NONE
    except KafkaError as error:
        return None, error.code
