"""Frames, and every request and response in every version.

Frames are cut in the same places for every size of a receive. A decoded message is encoded again: the bytes decode to
the same message, are never longer than the input, and are equal to it where there is only one encoding. The
generated codecs accept what the constructs accept (checked for one input of sixteen).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from compat.schemas.filler import full, sparse
from kbroker import handlers, quorum
from tests.fuzz.target import Target
from tests.wire.generated import declared_classes
from wire.codec import decode, decode_prefix, encode
from wire.errors import ErrorCode, Malformed
from wire.framing import (
    RECEIVE_BYTES,
    BufferPool,
    FrameBuffer,
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request_frame,
    encode_response_frame,
)
from wire.schema import NEVER_FLEXIBLE, first_flexible, request_class, response_class, schema_of
from wire.structs import construct_for

CAPTURED = Path(__file__).parents[1] / "wire" / "fixtures" / "captured"
MAX_FRAME_BYTES, MAX_REQUEST_BYTES = 1 << 20, 1 << 18
MAX_ELEMENTS = 100_000
_SHORTS = struct.Struct(">hh")


def joined(parts: list[Any]) -> bytes:
    """A frame after its length."""
    return b"".join(bytes(part) for part in parts)[4:]


def captured(side: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The "request" or "response" frames of real clients, without their lengths."""
    for file in sorted(CAPTURED.glob("*.json")):
        for pair in json.loads(file.read_text()):
            if pair[side] is not None:
                yield pair, bytes.fromhex(pair[side])


def message_versions(is_request: bool) -> Iterator[tuple[type, int, int]]:
    """(class, version, api key) of every request, or every response."""
    for cls in declared_classes():
        schema = schema_of(cls)
        if schema.api_key is not None and cls.__name__.endswith("Request" if is_request else "Response"):
            for version in range(schema.versions.lowest, schema.versions.highest + 1):
                yield cls, version, schema.api_key


# --- frames -----------------------------------------------------------------------------------------------------------


def cut_frames(data: bytes) -> None:
    """Cut a stream into frames: byte 0 is the size of a receive, in bytes below 16 and then in KiB; byte 1 repeats the
    rest if receives are large, so that large frames become complete.
    """
    if len(data) < 2:
        return
    is_small = data[0] < 16
    stream = data[2:] * (1 if is_small else 1 + data[1] % 65)
    frames = _cut(stream, len(stream) or 1)
    size = data[0] + 1 if is_small else data[0] * (RECEIVE_BYTES // 64)
    assert _cut(stream, size) == frames, "the frames depend on how the bytes arrive"
    for frame in frames:
        if frame is not None:
            read_header(frame)


def _cut(stream: bytes, size: int) -> list[bytes | None]:
    """The frames, then None if the rest is malformed."""
    buffer = FrameBuffer(MAX_FRAME_BYTES, BufferPool(), max_request_bytes=MAX_REQUEST_BYTES)
    found: list[bytes | None] = []
    position = 0
    try:
        while True:
            while (frame := buffer.next_frame()) is not None:
                found.append(bytes(frame))
                buffer.release(frame)
            if position >= len(stream):
                return found
            room = buffer.room()
            if room is None:
                chunk = stream[position : position + min(size, RECEIVE_BYTES)]
                buffer.feed(chunk)
            else:
                chunk = stream[position : position + min(size, len(room))]
                room[: len(chunk)] = chunk
                buffer.filled(len(chunk))
            del room
            position += len(chunk)
            held = buffer.pending_bytes
            assert held <= position, f"{held} bytes held of {position} received"
            assert buffer.wanted_bytes <= 2 * held + 4 * RECEIVE_BYTES + 4, "the buffer grows with the announced length"
    except Malformed:
        return [*found, None]


def read_header(frame: bytes) -> tuple[RequestHeader, memoryview] | None:
    """The header and the body; None if they are malformed."""
    try:
        header, body = decode_request_header(frame)
    except Malformed:
        return None
    name = header.client_id.encode()
    head = struct.pack(">hhih", header.api_key, header.api_version, header.correlation_id, len(name)) + name
    is_flexible = header.api_version >= first_flexible.get(header.api_key, NEVER_FLEXIBLE)
    assert decode_request_header(head + b"\0" * is_flexible) == (header, b"")
    return header, body


def _streams() -> Iterator[bytes]:
    frames = [struct.pack(">i", len(frame)) + frame for _, frame in captured("request")]
    yield from (b"\x00\x00" + frame for frame in frames)
    yield from (b"\x03\x02" + a + b for a, b in zip(frames[::7], frames[3::7], strict=False) if len(a + b) < 1000)
    for size in (70_000, 90_000, 300_000):
        yield b"\x20\x40" + struct.pack(">ihhih", size, 0, 9, 1, 1) + b"c" * 1500
    for length in (0, -1, 1 << 20, (1 << 20) + 1, 0x47455420):
        yield b"\x01\x00" + struct.pack(">i", length) + b"rest"


# --- messages ---------------------------------------------------------------------------------------------------------


def check_message(cls: type, version: int, body: bytes | memoryview) -> Any:
    """Decode a message, and encode it again; None if it is malformed."""
    samples = zlib.crc32(body) & 15 == 0
    try:
        message, end = decode_prefix(cls, version, body, max_elements=MAX_ELEMENTS)
    except Malformed:
        if samples:
            assert _constructed(cls, version, body) is None, "the constructs accept what the codec refuses"
        return None
    again = encode(message, version)
    assert len(again) <= end, "the encoding is longer than the bytes it came from"
    if len(again) == end and again != body[:end]:
        _check_same(bytes(body[:end]), again)
    second = decode(cls, version, again, exact=True)
    assert encode(second, version) == again
    if samples:
        assert repr(second) == repr(message)
        assert repr(_constructed(cls, version, body)) == repr(message), "the constructs decode something else"
    return message


def _check_same(data: bytes, again: bytes) -> None:
    """Two encodings of one length differ only in booleans (any byte but 0 is true) and in the bits of a NaN."""
    for theirs, ours in zip(data, again, strict=True):
        assert ours in (theirs, 1) or b"\x7f\xf8" in again or b"\xff\xf8" in again, (data.hex(), again.hex())


def _constructed(cls: type, version: int, body: bytes | memoryview) -> Any:
    try:
        return construct_for(cls, version).parse(bytes(body))
    except Malformed:
        return None


@cache
def _handlers() -> dict[int, handlers.Handler[Any]]:
    """The APIs of controllers, then those of brokers."""
    return {**quorum.discover(), **handlers.discover()}


def read_request(frame: bytes) -> None:
    """A request, and the answer with which it is refused."""
    found = read_header(frame)
    if found is None:
        return
    header, body = found
    cls, version = request_class(header.api_key), header.api_version
    if cls is None or version not in schema_of(cls).versions:
        return
    message = check_message(cls, version, body)
    handler = _handlers().get(header.api_key)
    if message is not None and handler is not None and version in handler.versions:
        refusal = handler.refusal(message, ErrorCode.INVALID_REQUEST, version)
        if refusal is not None:
            encode_response_frame(header.correlation_id, refusal, version)


def requests() -> Iterator[bytes]:
    """Frames of real clients, and every request in every version with all of its fields and with few."""
    declared_classes()
    yield from (frame for _, frame in captured("request"))
    for cls, version, _ in message_versions(is_request=True):
        for make in (full, sparse):
            parts = encode_request_frame(make(cls, version), version, correlation_id=1, client_id="f")
            yield joined(parts)


def read_response(data: bytes) -> None:
    """A response, as our own clients and brokers read it, after its api key and version."""
    if len(data) < 4:
        return
    api_key, version = _SHORTS.unpack_from(data)
    cls = response_class(api_key)
    if cls is None or version not in schema_of(cls).versions:
        return
    try:
        correlation_id, message = decode_response(cls, version, data[4:])
    except Malformed:
        return
    again = joined(encode_response_frame(correlation_id, message, version))
    assert len(again) <= len(data) - 4, "the encoding is longer than the bytes it came from"
    assert joined(encode_response_frame(*_swapped(cls, version, again))) == again


def _swapped(cls: type, version: int, frame: bytes) -> tuple[int, object, int]:
    correlation_id, message = decode_response(cls, version, frame)
    return correlation_id, message, version


def _responses() -> Iterator[bytes]:
    declared_classes()
    for pair, frame in captured("response"):
        yield _SHORTS.pack(pair["api_key"], pair["version"]) + frame
    for cls, version, api_key in message_versions(is_request=False):
        for make in (full, sparse):
            yield _SHORTS.pack(api_key, version) + joined(encode_response_frame(1, make(cls, version), version))


TARGETS = (
    Target("frames", cut_frames, _streams, lines=(20_000, 400), allocated=(2 << 20, 1024)),
    Target("requests", read_request, requests, weight=3.0),
    Target("responses", read_response, _responses, weight=1.5),
)
