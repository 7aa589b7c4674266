"""The four codecs of a record batch, decoded piece by piece so that memory is bounded for every input.

A producer may send 1 MB that decodes to 1 GB, so this module trusts no length that it has not derived from the bytes
themselves. `decompress_pieces` yields the decoded block in pieces of about a MiB and stops at `max_bytes`; `decompress`
joins them. `MAX_WORKING_BYTES` bounds the memory of one step (a zstd window, one raw snappy block).

A block is accepted if every consumer can read it, that is Apache Kafka's own readers and the strictest of the common
clients: exactly one gzip member, one lz4 frame or one zstd frame with nothing after it (some clients stop silently at
its end, others fail), lz4 with independent blocks and without a dictionary (Java refuses others), and snappy either in
the xerial framing of snappy-java or as one raw block, as librdkafka sends it. A block that ends early is refused even
if it contains all records, because a Java consumer reads up to the end mark.

Source: KIP-390 (levels), RFC 1952, RFC 8878 (zstd), lz4_Frame_format.md v1.6, snappy format_description.txt,
SnappyOutputStream of snappy-java; read and write classes in org.apache.kafka.common.compress (4.3.1).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import Final, TypeAlias

import cramjam
import lz4.frame

from wire.errors import Malformed
from wire.varint import decode_uvarint

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Bytes: TypeAlias = bytes | bytearray | memoryview

PIECE_BYTES: Final = 1 << 20
MAX_WORKING_BYTES: Final = 64 << 20
_GZIP_INPUT_BYTES: Final = 64 << 10


class Codec(IntEnum):
    """Compression of a batch: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_MOST_RATIO: Final = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255}


class TooLarge(Malformed):
    """The block decodes to more than the caller allows."""


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """Compress `data` into one block in the form that Kafka's Java classes write.

    `level` is the value of Kafka's `compression.<codec>.level` (gzip 1-9 or -1, lz4 1-17, zstd -131072-22; snappy
    has none); None takes the codec's default (gzip -1, lz4 9 = the fast compressor as in Kafka, zstd 3).
    """
    if codec is Codec.GZIP:
        return zlib.compress(data, -1 if level is None else level, wbits=31)
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        # Kafka's default 9 does not mean liblz4's level 9: Kafka's writer uses the fast compressor for exactly that
        # value.
        fast = level is None or level == LZ4_DEFAULT_LEVEL
        lz4_level = 0 if fast or level is None else min(level, lz4.frame.COMPRESSIONLEVEL_MAX)
        framed = lz4.frame.compress(
            data,
            compression_level=lz4_level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return bytes(framed)
    if codec is Codec.ZSTD:
        return zstd.compress(data, ZSTD_DEFAULT_LEVEL if level is None else level)
    return bytes(data)


LZ4_DEFAULT_LEVEL: Final = 9
ZSTD_DEFAULT_LEVEL: Final = 3


def decompress(codec: Codec, data: Bytes, *, max_bytes: int) -> bytes:
    """The whole decoded block. Raises TooLarge above `max_bytes`, and Malformed if the block cannot be decoded
    completely.
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise TooLarge(f"{len(data)} bytes are more than {max_bytes}")
        return bytes(data)
    pieces = list(decompress_pieces(codec, data, max_bytes=max_bytes))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_pieces(codec: Codec, data: Bytes, *, max_bytes: int) -> Iterator[bytes]:
    """The decoded block in pieces of about PIECE_BYTES. A caller that drops each piece holds one at a time.

    The block is complete only if the iterator ends normally. Raises TooLarge before it decodes more than `max_bytes`
    (plus one piece), and Malformed for anything that does not decode. Bounds: each step works on at most a few MiB,
    except for a raw snappy block, which is one unit by its format and is refused above MAX_WORKING_BYTES.
    """
    seen = 0
    for piece in _PIECES[codec](memoryview(data), max_bytes):
        seen += len(piece)
        if seen > max_bytes:
            raise TooLarge(f"the {codec.name.lower()} block decodes to more than {max_bytes} bytes")
        if piece:
            yield piece


def most_decoded(codec: Codec, data: Bytes, enough: int) -> int:
    """An upper bound on the decoded size, found without decoding: from the format's greatest ratio, or block by block.

    The format limits its precision; counting may stop above `enough`. The result for malformed data is arbitrary.
    """
    if codec is Codec.ZSTD:
        try:
            return _zstd_bound(memoryview(data), enough)
        except Malformed:
            return 0
    return len(data) * _MOST_RATIO[codec] + 64


def working_bytes(codec: Codec, data: Bytes) -> int:
    """An upper bound on the memory of `decompress_pieces`, including its pieces, found without decoding.

    The result for malformed data is arbitrary, up to three times MAX_WORKING_BYTES.
    """
    largest = PIECE_BYTES
    if codec is Codec.ZSTD:
        try:
            largest = min(_zstd_header(memoryview(data))[0], MAX_WORKING_BYTES)
        except Malformed:
            return 0
    elif codec is Codec.SNAPPY:
        largest = min(len(data) * _MOST_RATIO[codec] + 64, MAX_WORKING_BYTES)
        if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            largest = min(largest, _largest_xerial_block(memoryview(data)) * _MOST_RATIO[codec] + 64)
        largest *= 2  # the library's own copy
    elif codec is Codec.LZ4:
        largest = _LZ4_MAX_BLOCK_BYTES
    return largest + 2 * PIECE_BYTES


def _largest_xerial_block(data: memoryview) -> int:
    try:
        sizes = [len(block) for block in islice(_xerial_blocks(data), _XERIAL_BLOCKS_LOOKED_AT)]
    except Malformed:  # the blocks before may be large
        return len(data)
    return len(data) if len(sizes) == _XERIAL_BLOCKS_LOOKED_AT else max(sizes, default=0)


def _plain_pieces(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    for start in range(0, min(len(data), max_bytes + 1), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


def _gzip_pieces(data: memoryview, _max_bytes: int) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=31)
    position = 0
    tail = b""  # input left over from the last step; zlib copies it at each step, so the input is passed in slices
    try:
        while not inflate.eof:
            if not tail:
                tail = bytes(data[position : position + _GZIP_INPUT_BYTES])
                position += len(tail)
            piece = inflate.decompress(tail, PIECE_BYTES)
            tail = inflate.unconsumed_tail
            if not piece and not tail and not inflate.eof and position >= len(data):
                raise Malformed("the gzip block ends early")
            yield piece
    except zlib.error as error:
        raise Malformed(f"not a gzip block: {error}") from None
    if inflate.unused_data or position < len(data):
        raise Malformed("bytes after the gzip block")


_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version and lowest compatible version
_XERIAL_BLOCK_BYTES: Final = 32 << 10  # snappy-java's default
_XERIAL_BLOCKS_LOOKED_AT: Final = 1000
_INT32 = struct.Struct(">i")


def _compress_xerial(data: Bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _snappy_pieces(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    is_framed = bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    for block in _xerial_blocks(data) if is_framed else (data,):
        yield _snappy_block(block, max_bytes)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _INT32.size:
            raise Malformed("the snappy framing ends early")
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < size <= len(data) - position:
            raise Malformed(f"a snappy block of {size} bytes, but {len(data) - position} are left")
        yield data[position : position + size]
        position += size
    if position > len(data):
        raise Malformed("the snappy framing ends early")


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    try:
        size, _ = decode_uvarint(block, 0)
    except IndexError:
        raise Malformed("not a snappy block") from None
    # Three input bytes copy at most 64, so a larger claimed size is false and nothing may be allocated for it.
    if size > len(block) * _MOST_RATIO[Codec.SNAPPY] + 64:
        raise Malformed(f"a snappy block of {len(block)} bytes cannot hold {size}")
    if size > max_bytes or size > MAX_WORKING_BYTES:
        raise TooLarge(f"the snappy block decodes to {size} bytes")
    try:
        return bytes(cramjam.snappy.decompress_raw(block, output_len=size))
    except cramjam.DecompressionError as error:
        raise Malformed(f"not a snappy block: {error}") from None


_LZ4_MAX_BLOCK_BYTES: Final = 4 << 20
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"


def _lz4_pieces(data: memoryview, _max_bytes: int) -> Iterator[bytes]:
    if bytes(data[:4]) != _LZ4_MAGIC or len(data) < 7:
        raise Malformed("not an lz4 frame")
    # Version 1, independent blocks, no dictionary, reserved bits clear: the requirements of Java's reader.
    if data[4] & 0b1110_0011 != 0b0110_0000:
        raise Malformed("an lz4 frame with linked blocks or a dictionary, which consumers cannot read")
    inflate = lz4.frame.LZ4FrameDecompressor()
    remaining: Bytes = data
    try:
        while not inflate.eof:
            piece = inflate.decompress(remaining, max_length=PIECE_BYTES)
            remaining = b""
            if not piece and not inflate.eof and inflate.needs_input:
                raise Malformed("the lz4 frame ends early")
            yield piece
    except RuntimeError as error:
        raise Malformed(f"not an lz4 frame: {error}") from None
    if inflate.unused_data:
        raise Malformed("bytes after the lz4 frame")


_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES: Final = 128 << 10  # the largest decoded size of a block
_ZSTD_MAX_WINDOW_LOG: Final = 27  # the default limit of readers, including Java's and libzstd's


def _zstd_pieces(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Feed the decoder a few blocks at a time. Each decodes to at most 128 KiB, so the output of a step is bounded.

    The block headers also reveal a frame that ends early and bytes after it; the library's stream reader reports
    neither.
    """
    window, position = _zstd_header(data)
    if window > MAX_WORKING_BYTES:  # the decoder keeps a window of its output: then the whole output must fit
        max_bytes = min(max_bytes, MAX_WORKING_BYTES)
    has_checksum = data[4] & 0b100
    inflate = zstd.ZstdDecompressor()
    fed = blocks = seen = 0
    is_last = False
    try:
        while not is_last:
            is_last, position = _zstd_block(data, position)
            if is_last and has_checksum:
                position += 4
            if position > len(data):
                raise Malformed("the zstd frame ends early")
            blocks += 1
            if is_last or blocks == PIECE_BYTES // _ZSTD_BLOCK_BYTES:
                piece = inflate.decompress(data[fed:position])
                fed, blocks = position, 0
                seen += len(piece)
                if seen > max_bytes:
                    raise TooLarge(f"the zstd frame decodes to more than {max_bytes} bytes")
                yield piece
    except zstd.ZstdError as error:
        raise Malformed(f"not a zstd frame: {error}") from None
    if not inflate.eof:
        raise Malformed("the zstd frame ends early")
    if position != len(data):
        raise Malformed("bytes after the zstd frame")


def _zstd_block(data: memoryview, position: int) -> tuple[bool, int]:
    """Whether the block at `position` is the last, and the position after it. Source: RFC 8878 3.1.1.2."""
    if len(data) - position < 3:
        raise Malformed("the zstd frame ends early")
    header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
    return bool(header & 1), position + 3 + (1 if header >> 1 & 3 == 1 else header >> 3)  # type 1 repeats one byte


def _zstd_bound(data: memoryview, enough: int) -> int:
    _, position = _zstd_header(data)
    bound = 0
    is_last = False
    while not is_last and bound <= enough:
        is_last, position = _zstd_block(data, position)
        bound += _ZSTD_BLOCK_BYTES
    return bound


def _zstd_header(data: memoryview) -> tuple[int, int]:
    """Window size and position of the first block. Source: RFC 8878 3.1.1.1."""
    if bytes(data[:4]) != _ZSTD_MAGIC or len(data) < 6:
        raise Malformed("not a zstd frame")
    descriptor = data[4]
    single_segment = descriptor & 0x20
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    position = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if len(data) < position + size_bytes:
        raise Malformed("the zstd frame ends early")
    if single_segment:  # then the window is the size of the content
        window = int.from_bytes(data[position : position + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    else:
        base = 1 << 10 + (data[5] >> 3)
        window = base + (base >> 3) * (data[5] & 7)
    if window > 1 << _ZSTD_MAX_WINDOW_LOG:
        raise Malformed(f"a zstd frame with a window of {window} bytes, more than a consumer's decoder allows")
    return window, position + size_bytes


_PIECES = {
    Codec.NONE: _plain_pieces,
    Codec.GZIP: _gzip_pieces,
    Codec.SNAPPY: _snappy_pieces,
    Codec.LZ4: _lz4_pieces,
    Codec.ZSTD: _zstd_pieces,
}
