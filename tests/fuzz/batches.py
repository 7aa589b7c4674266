"""Record batches as the broker validates them, compressed blocks, and control batches.

Every consumer must be able to read an accepted batch: it is read back record by record and in columns, and must have
the right offsets, timestamps and checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

from kbroker.storage.control_records import marker_batch
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import read_marker
from kbroker.storage.validation import is_cheap, unpacking_bytes, validate_produced
from tests.fuzz.target import Target
from wire.batch_header import HEADER_SIZE, POSITIONS
from wire.compression import PIECE_BYTES, Codec, compress, decompress, decompress_pieces, most_decoded, working_bytes
from wire.crc32c import crc32c
from wire.errors import KafkaError, Malformed
from wire.record_batch import Record, RecordBatch, batches, build_batch
from wire.record_values import read_values

NOW_MS = 1_750_000_000_000
MAX_DECOMPRESSED_BYTES = 4 << 20
MAX_BLOCK_BYTES = 1 << 20
_CRC_END = POSITIONS["crc"] + 4
_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "producer", "producer")


@cache
def _config(flags: int) -> LogConfig:
    return LogConfig(
        compression_type=_TYPES[flags & 7],
        cleanup_policy=frozenset({"compact" if flags & 8 else "delete"}),
        message_timestamp_type="LogAppendTime" if flags & 16 else "CreateTime",
        message_timestamp_before_max_ms=1_000 if flags & 32 else (1 << 63) - 1,
    )


def with_valid_head(data: bytearray, *, codec: int | None) -> bytearray:
    """The batch with a length, a format and a checksum that fit, and its records compressed if there is a codec."""
    if len(data) < HEADER_SIZE:
        return data
    if codec is not None:
        kind = Codec(codec % 5)
        data[HEADER_SIZE:] = compress(kind, data[HEADER_SIZE:])
        data[POSITIONS["attributes"] + 1] = data[POSITIONS["attributes"] + 1] & ~7 | kind
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[16] = 2
    struct.pack_into(">I", data, POSITIONS["crc"], crc32c(memoryview(data)[_CRC_END:]))
    return data


def validate(data: bytes) -> None:
    """Byte 0: the fields that the harness corrects; byte 1: the topic's settings; byte 2: the version of Produce."""
    if len(data) < 3:
        return
    records = bytearray(data[3:])
    if data[0] & 1:
        records = with_valid_head(records, codec=data[0] >> 2 if data[0] & 2 else None)
    config = _config(data[1])
    if not is_cheap(records, config):
        unpacking_bytes(records, config)
    try:
        produced = validate_produced(
            memoryview(records),
            api_version=3 + data[2] % 11,
            config=config,
            timestamp_ms=NOW_MS,
            max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
        )
    except KafkaError:
        return
    _check_readable(RecordBatch(bytes(produced.data)), config)


def _check_readable(batch: RecordBatch, config: LogConfig) -> None:
    assert batch.is_whole
    assert batch.crc_is_valid()
    found = list(batch.records())
    count = batch.record_count
    assert count == len(found) == batch.last_offset_delta + 1
    assert [record.offset for record in found] == list(range(batch.base_offset, batch.base_offset + count))
    if config.is_compacting:
        assert all(record.key is not None for record in found)
    if not batch.is_log_append_time:
        assert batch.max_timestamp == max(-1, *(record.timestamp for record in found))
    columns = [
        (offset, value) for offsets, values in read_values(batch) for offset, value in zip(offsets, values, strict=True)
    ]
    assert columns == [(record.offset, record.value) for record in found]


def _batches() -> Iterator[bytes]:
    some = [Record(timestamp=NOW_MS, key=b"k", value=b"v", headers=(("h", b"x"), ("n", None)))]
    alike = [Record(timestamp=NOW_MS + number, key=None, value=b"value-%04d" % number) for number in range(20)]
    mixed = [
        Record(timestamp=NOW_MS, key=b"k" * (number % 5), value=None if number % 3 else b"v" * number)
        for number in range(30)
    ]
    for records in (some, alike, mixed):
        plain = build_batch(records)
        for codec in Codec:
            yield bytes([3 | codec << 2, 0, 10]) + plain
            yield bytes([0, codec + 1, 10]) + build_batch(records, codec=codec)
        yield b"\x01\x08\x0a" + plain
        yield b"\x01\x10\x0a" + plain
        yield b"\x01\x20\x0a" + plain
    yield b"\x01\x00\x0a" + build_batch(some, producer_id=7, producer_epoch=1, base_sequence=0, is_transactional=True)
    yield b"\x00\x00\x0a" + build_batch(some) * 2
    yield b"\x00\x00\x0a" + build_batch(some)[:-4]


def unpack(data: bytes) -> None:
    """Byte 0 is the codec of the block that follows; and the block itself survives each codec."""
    if not data:
        return
    codec, block = Codec(data[0] % 5), data[1:]
    working_bytes(codec, block)
    bound = most_decoded(codec, block, 2 * MAX_BLOCK_BYTES)
    size = 0
    try:
        for piece in decompress_pieces(codec, block, max_bytes=MAX_BLOCK_BYTES):
            size += len(piece)
            assert size <= MAX_BLOCK_BYTES
            assert len(piece) <= 4 * PIECE_BYTES
    except Malformed:
        pass
    else:
        assert size <= bound or bound > 2 * MAX_BLOCK_BYTES, f"{size} bytes decoded, {bound} promised"
    if data[0] & 0x80:
        assert decompress(codec, compress(codec, block), max_bytes=len(block) or 1) == block


def _blocks() -> Iterator[bytes]:
    for codec in Codec:
        for block in (b"", b"x", b"abc" * 50, bytes(100_000), bytes(2 << 20)):
            yield bytes([codec]) + compress(codec, block)
            yield bytes([0x80 | codec]) + block[:200]


def read_control_batch(data: bytes) -> None:
    """Batches as a log holds them: a walk over all of them, and the marker of each."""
    position = 0
    try:
        for batch in batches(data):
            assert batch.size > 0
            read_marker(data, position)
            position += batch.size
    except Malformed:
        return
    assert position <= len(data)


def _control_batches() -> Iterator[bytes]:
    for is_commit in (True, False):
        one = marker_batch(4, 1, is_commit=is_commit, coordinator_epoch=3, timestamp_ms=NOW_MS)
        yield one
        yield one + build_batch([Record(value=b"v")], base_offset=1)


TARGETS = (
    Target("batches", validate, _batches, lines=(20_000, 400), allocated=(16 << 20, 1024), weight=2.0),
    Target("blocks", unpack, _blocks, lines=(20_000, 400), allocated=(12 << 20, 1024)),
    Target("control", read_control_batch, _control_batches, weight=0.5),
)
