"""Frames: a length (int32, big endian), then a header and a body. Bytes in, frames out, without sockets.

A server reads a connection as follows and needs no other state:

    frame = buffer.next_frame()                 # Malformed: close the connection
    if frame is not None:
        header, body = decode_request_header(frame)
    elif (room := buffer.room()) is not None:   # a large frame has begun: receive into its own memory
        buffer.filled(receive_into(room))
    else:
        buffer.feed(receive(RECEIVE_BYTES))

Small frames are views over the received bytes, so a frame that arrives in one receive is not copied. A large frame gets
its own buffer once some of it has arrived. The buffer grows with the bytes that arrive, not with the announced length:
it doubles, with at least RECEIVE_BYTES and at most MAX_ROOM_BYTES of free room. The frame is handed out as a view over
that buffer. Growing a buffer and touching fresh pages cost more than receiving, so a caller that calls `release` after
using a frame lets a `BufferPool` reuse its buffer for the next one. A frame that is too large for the pool is received
into mapped memory, whose pages are allocated on first use and which leaves no hole in the heap when it is freed.

The request header is v2 if the body is flexible, else v1; its client_id has an int16 length in both. The response
header is v1 if the body is flexible, else v0. It is always v0 for ApiVersions, because its sender may not know which
version it will get.

Source: KIP-482, KIP-511; RequestHeader.json and ResponseHeader.json of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import mmap
import struct
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from wire.codec import decode_prefix, encode_parts
from wire.codegen import skip_tags
from wire.errors import FrameSize, Malformed
from wire.schema import NEVER_FLEXIBLE, first_flexible, schema_of
from wire.types import Opaque
from wire.varint import Buffer, decode_uvarint

M = TypeVar("M")

RECEIVE_BYTES: Final = 64 * 1024
"""The number of bytes that a caller should request in one receive."""

MAX_ROOM_BYTES: Final = 256 * 1024
"""The maximum size of room()."""

_LARGE_BYTES: Final = RECEIVE_BYTES // 4
_MAPPED_BYTES: Final = 2 * 1024 * 1024
_MAPPING: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_ZEROES: Final = memoryview(bytes(MAX_ROOM_BYTES))
_PRODUCE, _API_VERSIONS = 0, 18
_MAX_HEADER_TAGS: Final = 1_000
_length: Final = struct.Struct(">i")
_request_head: Final = struct.Struct(">hhih")
_response_head: Final = struct.Struct(">ii")
_new: Final = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_first_with_tags: Final[dict[type, int]] = {}


class RequestHeader(NamedTuple):
    """The header of every request; a null client_id becomes "", as in Kafka."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


class BufferPool:
    """Buffers of released large frames, reused for later frames of any connection.

    Bound  max_buffers of at most max_bytes each; larger ones are not kept
    """

    __slots__ = ("_buffers", "max_buffers", "max_bytes")

    def __init__(self, *, max_buffers: int = 8, max_bytes: int = _MAPPED_BYTES) -> None:
        self.max_buffers = max_buffers
        self.max_bytes = max_bytes
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes with arbitrary contents; None if the pool has none."""
        buffers = self._buffers
        for index in range(len(buffers) - 1, -1, -1):
            if len(buffers[index]) >= size:
                return buffers.pop(index)
        return None

    def give(self, buffer: bytearray) -> None:
        """Keep a buffer that is no longer in use. A full pool drops its smallest buffer for it."""
        if len(buffer) > self.max_bytes:
            return
        self._buffers.append(buffer)
        if len(self._buffers) > self.max_buffers:
            self._buffers.remove(min(self._buffers, key=len))


_TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a connection over TLS."""


class FrameBuffer:
    """The bytes of one connection, cut into frames.

    Invariant  the buffer holds at most one partial frame besides the bytes that views refer to
    Errors     Malformed for a length below 1 or above max_frame_bytes, or above max_request_bytes in the frame of any
               request except Produce; the buffer is unusable afterwards
    """

    __slots__ = (
        "_chunk",
        "_filled",
        "_large",
        "_large_size",
        "_pool",
        "_position",
        "_room",
        "max_frame_bytes",
        "max_request_bytes",
    )

    def __init__(
        self, max_frame_bytes: int, pool: BufferPool | None = None, *, max_request_bytes: int | None = None
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_request_bytes = max_frame_bytes if max_request_bytes is None else max_request_bytes
        self._pool = pool
        self._chunk: bytes = b""
        self._position = 0  # of the next frame in _chunk
        self._large: bytearray | mmap.mmap | None = None  # the body of the large frame in progress
        self._large_size = 0
        self._filled = 0
        self._room = memoryview(b"")

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a partial frame: above 0 if a peer that disconnects now cuts a frame."""
        return 4 + self._filled if self._large is not None else len(self._chunk) - self._position

    @property
    def frame_bytes(self) -> int:
        """The size of the frame in progress, including its length field; 0 until it is known."""
        if self._large is not None:
            return 4 + self._large_size
        if len(self._chunk) - self._position < 4:
            return 0
        size: int = 4 + _length.unpack_from(self._chunk, self._position)[0]
        return size

    @property
    def wanted_bytes(self) -> int:
        """The memory that the frame in progress needs to receive more bytes."""
        large = self._large
        if large is None:
            return self.pending_bytes
        if isinstance(large, bytearray):
            return len(large) + self._growth(large)
        return min(self._large_size, self._filled + MAX_ROOM_BYTES)

    def feed(self, data: bytes) -> None:
        """Add received bytes. Allowed only between frames or in a small frame, i.e. when room() is None."""
        assert self._large is None, "a large frame is in progress: use room() and filled()"
        self._chunk = self._chunk[self._position :] + data if self._chunk else data
        self._position = 0

    def next_frame(self) -> memoryview | None:
        """The next complete frame without its length field, or None if more bytes are needed."""
        chunk = self._chunk
        start = self._position + 4
        if start > len(chunk):
            if self._large is None or self._filled < self._large_size:
                if self._position:
                    self._keep_the_rest()
                return None
            frame, self._large = memoryview(self._large)[: self._large_size], None
            self._room.release()  # otherwise it keeps the buffer alive until the next large frame
            return frame
        size: int = _length.unpack_from(chunk, self._position)[0]
        if not 0 < size <= self.max_frame_bytes:
            if size >> 16 == _TLS_HANDSHAKE:
                raise Malformed("a TLS handshake where a request must be: this listener has no TLS")
            raise FrameSize(f"a frame of {size} bytes, where 1 to {self.max_frame_bytes} are possible")
        if size > self.max_request_bytes:
            if start + 2 > len(chunk):
                self._keep_the_rest()
                return None  # the api key, which decides, has not arrived yet
            api_key = chunk[start] << 8 | chunk[start + 1]
            if api_key != _PRODUCE:
                raise FrameSize(
                    f"a request of api key {api_key} with {size} bytes; the limit is {self.max_request_bytes}"
                )
        end = start + size
        if end > len(chunk):
            if size > RECEIVE_BYTES and len(chunk) - start >= _LARGE_BYTES:
                begun = memoryview(chunk)[start:]
                self._large_size, self._filled = size, len(begun)
                self._large = self._pool.take(size) if self._pool is not None else None
                if self._large is None and size > _MAPPED_BYTES:
                    with suppress(OSError):  # no room for a mapping of this size
                        self._large = mmap.mmap(-1, size, flags=_MAPPING)
                if self._large is None:
                    self._large = bytearray(begun)
                else:
                    self._large[: len(begun)] = begun
                self._chunk, self._position = b"", 0
            else:
                self._keep_the_rest()
            return None
        if end == len(chunk):
            self._chunk, self._position = b"", 0
        else:
            self._position = end
        return memoryview(chunk)[start:end]

    def _keep_the_rest(self) -> None:
        """Release the frames before the one in progress: its remaining bytes may take a long time to arrive."""
        if self._position:
            self._chunk, self._position = self._chunk[self._position :], 0

    def room(self) -> memoryview | None:
        """Where to receive the next bytes of a large frame, never empty; None if no large frame is incomplete.

        The view is valid until the next call of room().
        """
        large, filled = self._large, self._filled
        if large is None or filled == self._large_size:
            return None
        self._room.release()
        if isinstance(large, bytearray) and (growth := self._growth(large)):
            large += _ZEROES[:growth]
        end = self._large_size if isinstance(large, bytearray) else min(self._large_size, filled + MAX_ROOM_BYTES)
        self._room = memoryview(large)[filled:end]
        return self._room

    def _growth(self, large: bytearray) -> int:
        """The number of bytes by which the buffer grows before the next receive."""
        filled, lacking = self._filled, self._large_size - len(large)
        if lacking <= 0 or len(large) - filled >= RECEIVE_BYTES:
            return 0
        return min(lacking, max(RECEIVE_BYTES, min(filled, MAX_ROOM_BYTES)))

    def release(self, frame: memoryview) -> None:
        """Declare a frame as no longer used. The buffer of a large frame may then be reused."""
        buffer = frame.obj
        if self._pool is not None and isinstance(buffer, bytearray):
            self._pool.give(buffer)

    def filled(self, count: int) -> None:
        """Note that `count` bytes were received into room()."""
        assert self._large is not None
        self._filled += count


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """The header of a request frame, and the rest as its body.

    The header of an api key whose module is not loaded is read as v1; its body cannot be decoded anyway. Malformed if
    the header is cut or wrong.
    """
    try:
        api_key: int
        length: int
        api_key, api_version, correlation_id, length = _request_head.unpack_from(frame)
        position = 10
        client_id = ""
        if length > 0:
            position += length
            if position > len(frame):
                raise Malformed(f"a client id of {length} bytes exceeds the frame")
            client_id = str(frame[10:position], "utf-8")
        elif length < -1:
            raise Malformed(f"a client id of {length} bytes")
        if api_version >= first_flexible.get(api_key, NEVER_FLEXIBLE):
            if frame[position]:
                count, position = decode_uvarint(frame, position)
                if count > _MAX_HEADER_TAGS:
                    raise Malformed(f"a request header with {count} tagged fields")
                position = skip_tags(frame, position, len(frame), count)
            else:  # clients do not send tags yet
                position += 1
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"a request header that is cut or wrong: {error}") from error
    view = frame if isinstance(frame, memoryview) else memoryview(frame)
    return _new(RequestHeader, (api_key, api_version, correlation_id, client_id)), view[position:]


def _response_tags(cls: type, version: int) -> bytes:
    """The tag buffer of a response's header: an empty tag buffer, or no bytes."""
    first = _first_with_tags.get(cls)
    if first is None:
        api_key = schema_of(cls).api_key
        assert api_key is not None
        first = _first_with_tags[cls] = NEVER_FLEXIBLE if api_key == _API_VERSIONS else first_flexible[api_key]
    return b"\0" if version >= first else b""


def encode_response_frame(correlation_id: int, message: object, version: int) -> list[bytes | Opaque]:
    """The frame of a response, in pieces to be sent in order; Opaques stay in their places."""
    parts = encode_parts(message, version)
    tags = _response_tags(type(message), version)
    if len(parts) == 1 and isinstance(part := parts[0], bytes):
        return [_response_head.pack(4 + len(tags) + len(part), correlation_id) + tags + part]
    return _behind(_response_head.pack(4 + len(tags) + _size(parts), correlation_id) + tags, parts)


def encode_request_frame(message: object, version: int, *, correlation_id: int, client_id: str) -> list[bytes | Opaque]:
    """The frame of a request, in pieces as from encode_response_frame()."""
    schema = schema_of(type(message))
    assert schema.api_key is not None
    parts = encode_parts(message, version)
    name = client_id.encode()
    tags = b"\0" if version in schema.flexible else b""
    head = _request_head.pack(schema.api_key, version, correlation_id, len(name)) + name + tags
    return _behind(_length.pack(len(head) + _size(parts)) + head, parts)


def decode_response(cls: type[M], version: int, frame: Buffer) -> tuple[int, M]:
    """The correlation id and the message of a response frame (without its length)."""
    position = 4
    try:
        (correlation_id,) = _length.unpack_from(frame)
        if _response_tags(cls, version):
            count, position = decode_uvarint(frame, position)
            position = skip_tags(frame, position, len(frame), count)
    except (struct.error, IndexError) as error:
        raise Malformed(f"a response header that is cut: {error}") from error
    return correlation_id, decode_prefix(cls, version, frame, position)[0]


def _size(parts: list[bytes | Opaque]) -> int:
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, bytes) else part.size
    return size


def _behind(head: bytes, parts: list[bytes | Opaque]) -> list[bytes | Opaque]:
    if isinstance(parts[0], bytes):
        parts[0] = head + parts[0]
        return parts
    return [head, *parts]
