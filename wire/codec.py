"""Encode and decode messages.

    request = decode(HeartbeatRequest, 4, body)
    reply = encode(HeartbeatResponse(error_code=ErrorCode.NONE), 4)

The parser and the builder of a (class, version) are generated at their first use (constructs.py) and kept.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

from wire.errors import Malformed
from wire.structs import Builder, Parser, compile_builder, compile_parser, construct_for
from wire.types import Opaque
from wire.varint import Buffer

M = TypeVar("M")

_parsers: dict[tuple[type, int], Parser] = {}
_builders: dict[tuple[type, int], Builder] = {}
_join = b"".join


def decode(cls: type[M], version: int, data: Buffer, *, exact: bool = False) -> M:
    """The message in `data`; surplus bytes behind it are ignored, as Kafka does, unless `exact`.

    Raises Malformed, and nothing else, for bytes that do not decode; KafkaError UNSUPPORTED_VERSION if the class has no
    such version. Its work is bounded by the size of `data`. Records are views over `data`, all else is copied.
    """
    value, position = decode_prefix(cls, version, data)
    if exact and position != len(data):
        raise Malformed(f"{len(data) - position} bytes behind {cls.__name__}")
    return value


def decode_prefix(cls: type[M], version: int, data: Buffer, position: int = 0) -> tuple[M, int]:
    """The message at `position` of `data`, and the position behind it. Errors as of decode()."""
    parse = _parsers.get((cls, version))
    if parse is None:
        parse = _parsers[cls, version] = compile_parser(construct_for(cls, version))
    try:
        return parse(data, position, len(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"{cls.__name__} version {version}: {error}") from error


def encode(message: object, version: int) -> bytes:
    """The bytes of `message`, which holds no Opaque.

    NotInVersion if it holds a value that the version cannot express and that is not ignorable; struct.error for a
    number out of range.
    """
    return _join(_build(message, version, []))


def encode_parts(message: object, version: int) -> list[bytes | Opaque]:
    """The encoding in pieces: bytes, and in their places the Opaques, to be sent as they are. So are records of 64 KiB
    and more in memory.
    """
    opaques: list[int] = []
    parts = _build(message, version, opaques)
    joined: list[bytes | Opaque] = []
    start = 0
    for index in opaques:
        if start < index:
            joined.append(_join(parts[start:index]))
        joined.append(parts[index])
        start = index + 1
    if start < len(parts) or not joined:
        joined.append(_join(parts[start:] if start else parts))
    return joined


def _build(message: object, version: int, opaques: list[int]) -> list[Any]:
    cls = message.__class__
    build = _builders.get((cls, version))
    if build is None:
        build = _builders[cls, version] = compile_builder(construct_for(cls, version))
    parts: list[Any] = []
    build(message, parts, opaques)
    return parts
