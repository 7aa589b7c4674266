from __future__ import annotations

import importlib
import struct
import zlib
from collections import deque

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.compression import (
    MAX_WORKING_BYTES,
    PIECE_BYTES,
    Codec,
    TooLarge,
    compress,
    decompress,
    decompress_pieces,
    most_decoded,
)
from wire.errors import Malformed

CODECS = list(Codec)[1:]
ANY_SIZE = 1 << 40
TEXT = b"".join(b"line %d of a text that compresses well\n" % (n * n) for n in range(5000))
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


@given(st.binary(max_size=300), st.integers(0, 3000), st.sampled_from(Codec))
@settings(max_examples=100, deadline=None)
def test_data_survive_a_round_trip(data: bytes, times: int, codec: Codec) -> None:
    data *= times
    packed = compress(codec, data)
    assert decompress(codec, packed, max_bytes=len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), max_bytes=ANY_SIZE) == data
    assert most_decoded(codec, packed, ANY_SIZE) >= len(data)


@pytest.mark.parametrize("codec", list(Codec))
def test_pieces_are_small_and_complete(codec: Codec) -> None:
    data = TEXT * 40
    pieces = list(decompress_pieces(codec, compress(codec, data), max_bytes=ANY_SIZE))
    assert b"".join(pieces) == data
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, [-1, 1, 9]), (Codec.LZ4, [1, 9, 12, 17]), (Codec.ZSTD, [-5, 1, 3, 19]), (Codec.SNAPPY, [None])],
)
def test_every_level_of_kafkas_settings_can_be_used(codec: Codec, levels: list[int | None]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level), max_bytes=ANY_SIZE) == TEXT


def test_a_higher_level_compresses_better() -> None:
    assert len(compress(Codec.GZIP, TEXT, 9)) < len(compress(Codec.GZIP, TEXT, 1))
    assert len(compress(Codec.ZSTD, TEXT, 19)) < len(compress(Codec.ZSTD, TEXT, 1))
    assert len(compress(Codec.LZ4, TEXT, 12)) < len(compress(Codec.LZ4, TEXT, 9))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python's own
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_and_we_read_each_other(codec: Codec) -> None:
    theirs = importlib.import_module("kafka.codec")
    name = codec.name.lower()
    assert decompress(codec, getattr(theirs, f"{name}_encode")(TEXT), max_bytes=ANY_SIZE) == TEXT
    assert bytes(getattr(theirs, f"{name}_decode")(compress(codec, TEXT))) == TEXT


def test_a_raw_snappy_block_is_read_as_librdkafka_sends_it() -> None:
    packed = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Codec.SNAPPY, packed, max_bytes=ANY_SIZE) == TEXT
    with pytest.raises(TooLarge):
        decompress(Codec.SNAPPY, packed, max_bytes=len(TEXT) - 1)


def test_two_zstd_blocks_can_be_decoded_in_turns() -> None:
    whole = [bytes([value]) * (3 * PIECE_BYTES) for value in (1, 2)]
    blocks = [compress(Codec.ZSTD, data) for data in (b"before", *whole)]
    assert decompress(Codec.ZSTD, blocks[0], max_bytes=10) == b"before"
    turns = [decompress_pieces(Codec.ZSTD, block, max_bytes=4 * PIECE_BYTES) for block in blocks[1:]]
    pairs = list(zip(*turns, strict=True))
    assert [b"".join(pieces) for pieces in zip(*pairs, strict=True)] == whole


def test_zstd_is_read_with_and_without_its_optional_fields() -> None:
    for size in (True, False):
        for checksum in (True, False):
            compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum)
            for data in (b"", b"x", TEXT[:100], TEXT, bytes(1 << 20)):
                assert decompress(Codec.ZSTD, compressor.compress(data), max_bytes=ANY_SIZE) == data
                streamed = compressor.compressobj()
                packed = streamed.compress(data) + streamed.flush()
                assert decompress(Codec.ZSTD, packed, max_bytes=ANY_SIZE) == data


def test_lz4_is_read_with_every_block_size_and_checksum() -> None:
    for block_size in (4, 5, 6, 7):
        for checksum in (True, False):
            packed = lz4.frame.compress(
                TEXT,
                block_linked=False,
                block_size=block_size,
                content_checksum=checksum,
                block_checksum=checksum,
                store_size=checksum,
            )
            assert decompress(Codec.LZ4, packed, max_bytes=ANY_SIZE) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_is_cut_anywhere_is_malformed(codec: Codec) -> None:
    packed = compress(codec, TEXT[:2000] + bytes(70_000))
    # snappy's frames have no end mark, so a cut between two of them shows only in the records
    whole_blocks = {XERIAL, packed[: len(XERIAL) + 4 + struct.unpack_from(">i", packed, len(XERIAL))[0]]}
    for cut in range(len(packed)):
        if codec is Codec.SNAPPY and (packed[:cut] in whole_blocks or is_whole_xerial(packed[:cut])):
            continue
        with pytest.raises(Malformed):
            decompress(codec, packed[:cut], max_bytes=ANY_SIZE)


def is_whole_xerial(packed: bytes) -> bool:
    position = len(XERIAL)
    while position + 4 <= len(packed):
        position += 4 + struct.unpack_from(">i", packed, position)[0]
    return position == len(packed)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("behind", [b"\0", b"\0\0\0\0\0", b"again"])
def test_bytes_after_the_block_are_malformed(codec: Codec, behind: bytes) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(Malformed):
        decompress(
            codec, packed + (packed if behind == b"again" and codec is not Codec.SNAPPY else behind), max_bytes=ANY_SIZE
        )


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=60), flip=st.tuples(st.integers(0, 200), st.integers(1, 255)))
@settings(max_examples=60, deadline=None)
def test_any_other_input_is_malformed(codec: Codec, data: bytes, flip: tuple[int, int]) -> None:
    packed = bytearray(compress(codec, TEXT[:300]))
    packed[flip[0] % len(packed)] ^= flip[1]
    for attempt in (data, packed):
        try:
            decompress(codec, attempt, max_bytes=1 << 20)
            most_decoded(codec, attempt, 1 << 20)
        except Malformed:
            pass


def test_lz4_frames_that_java_cannot_read_are_malformed() -> None:
    linked = lz4.frame.compress(TEXT, block_linked=True)
    with pytest.raises(Malformed, match="linked"):
        decompress(Codec.LZ4, linked, max_bytes=ANY_SIZE)
    with pytest.raises(Malformed, match="not an lz4 frame"):
        decompress(Codec.LZ4, b"\x02\x21\x4c\x18" + bytes(20), max_bytes=ANY_SIZE)  # the legacy frame's magic
    wrong = bytearray(compress(Codec.LZ4, TEXT))
    wrong[6] ^= 1  # the header's checksum
    with pytest.raises(Malformed):
        decompress(Codec.LZ4, wrong, max_bytes=ANY_SIZE)


def test_a_zstd_window_above_the_consumers_limit_is_malformed() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    streamed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = streamed.compress(TEXT) + streamed.flush()
    with pytest.raises(Malformed, match="window"):
        decompress(Codec.ZSTD, packed, max_bytes=ANY_SIZE)


def test_w6_a_large_zstd_window_stays_within_the_working_set() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    streamed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    small = streamed.compress(TEXT) + streamed.flush()
    assert decompress(Codec.ZSTD, small, max_bytes=ANY_SIZE) == TEXT
    streamed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    zeros = bytes(1 << 20)
    parts = [streamed.compress(zeros) for _ in range((MAX_WORKING_BYTES >> 20) + 2)]
    large = b"".join([*parts, streamed.flush()])
    with pytest.raises(TooLarge):
        deque(decompress_pieces(Codec.ZSTD, large, max_bytes=ANY_SIZE), maxlen=0)


def bomb(codec: Codec, mebibytes: int) -> bytes:
    """A block that decodes to this many MiB of zeros."""
    zeros = bytes(1 << 20)
    if codec is Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(zeros))
        return XERIAL + (struct.pack(">i", len(block)) + block) * mebibytes
    if codec is Codec.LZ4:
        framed = lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        return b"".join([framed.begin(), *(framed.compress(zeros) for _ in range(mebibytes)), framed.flush()])
    stream = zlib.compressobj(1, wbits=31) if codec is Codec.GZIP else zstandard.ZstdCompressor(1).compressobj()
    return b"".join([*(stream.compress(zeros) for _ in range(mebibytes)), stream.flush()])


@pytest.mark.parametrize("codec", CODECS)
def test_w6_a_bomb_is_cut_at_the_bound(codec: Codec) -> None:
    packed = bomb(codec, 100)
    assert len(packed) < 100 << 16
    bound = 20 << 20
    sizes: list[int] = []
    with pytest.raises(TooLarge, match="more than 20971520"):
        sizes.extend(map(len, decompress_pieces(codec, packed, max_bytes=bound)))
    assert bound - PIECE_BYTES <= sum(sizes) <= bound
    assert max(sizes) <= PIECE_BYTES
    with pytest.raises(TooLarge):
        decompress(codec, packed, max_bytes=bound)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f" + b"\0" * 20, id="4 GiB claimed by a raw block"),
        pytest.param(
            XERIAL + struct.pack(">i", 10) + b"\xff\xff\xff\xff\x0f\0\0\0\0\0", id="4 GiB claimed by a framed block"
        ),
        pytest.param(b"\xff" * 20, id="size of more than 32 bits"),
        pytest.param(XERIAL + struct.pack(">i", 1 << 30) + b"\0" * 5, id="block longer than the data"),
        pytest.param(XERIAL + struct.pack(">i", -5) + b"\0" * 5, id="negative block"),
        pytest.param(XERIAL + struct.pack(">i", 0) * 3, id="empty blocks"),
        pytest.param(XERIAL[:-3], id="header cut off"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_w6_wrong_snappy_sizes_are_refused_before_allocation(packed: bytes) -> None:
    with pytest.raises(Malformed):
        decompress(Codec.SNAPPY, packed, max_bytes=ANY_SIZE)


def test_w6_the_bound_of_zstd_is_found_without_decoding() -> None:
    packed = bomb(Codec.ZSTD, 10)
    assert 10 << 20 <= most_decoded(Codec.ZSTD, packed, ANY_SIZE) <= 11 << 20
    assert 1 << 20 < most_decoded(Codec.ZSTD, packed, 1 << 20) <= 2 << 20
    assert most_decoded(Codec.ZSTD, b"no zstd", 1) == 0
