"""Encode and decode messages.

    request = decode(HeartbeatRequest, 4, body)
    reply = encode(HeartbeatResponse(error_code=ErrorCode.NONE), 4)

The parser and the builder of a (class, version) are generated at their first use (constructs.py) and kept.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, TypeVar

from wire.errors import Malformed
from wire.schema import schema_of
from wire.structs import Body, Builder, Parser, compile_builder, compile_parser, construct_for
from wire.types import Opaque
from wire.varint import Buffer

M = TypeVar("M")

_parsers: dict[tuple[type, int], Parser] = {}
_builders: dict[tuple[type, int], Builder] = {}
_element_builders: dict[tuple[type, type, int], Builder] = {}
_join = b"".join

NO_LIMIT = sys.maxsize


def decode(cls: type[M], version: int, data: Buffer, *, exact: bool = False, max_elements: int = NO_LIMIT) -> M:
    """The message in `data`; surplus bytes behind it are ignored, as Kafka does, unless `exact`.

    Raises Malformed, and nothing else, for bytes that do not decode; KafkaError UNSUPPORTED_VERSION if the class has no
    such version. Its work is bounded by the size of `data`, and by `max_elements`: TooManyElements (which is Malformed
    too) is raised if all arrays of the message together, with its tagged fields, announce more elements. Each count is
    checked before its elements are read. Records are views over `data`, all else is copied.
    """
    value, position = decode_prefix(cls, version, data, max_elements=max_elements)
    if exact and position != len(data):
        raise Malformed(f"{len(data) - position} bytes behind {cls.__name__}")
    return value


def decode_prefix(
    cls: type[M], version: int, data: Buffer, position: int = 0, *, max_elements: int = NO_LIMIT
) -> tuple[M, int]:
    """The message at `position` of `data`, and the position behind it. Errors as of decode()."""
    parse = _parsers.get((cls, version))
    if parse is None:
        parse = _parsers[cls, version] = compile_parser(construct_for(cls, version))
    try:
        return parse(data, position, len(data), max_elements)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"{cls.__name__} version {version}: {error}") from error


def encode(message: object, version: int) -> bytes:
    """The bytes of `message`, which holds no Opaque.

    NotInVersion if it holds a value that the version cannot express and that is not ignorable; struct.error for a
    number out of range.
    """
    return _join(_build(message, version, []))


def encode_element(value: object, message: type, version: int) -> bytes:
    """The bytes of a struct in an array of a message class, in one of its versions.

    An array may hold such bytes in the place of the struct. So what is answered often is encoded once, and a long
    reply needs no objects for all of its elements at the same time. Errors as of encode().
    """
    key = (value.__class__, message, version)
    build = _element_builders.get(key)
    if build is None:
        flexible = version in schema_of(message).flexible
        build = _element_builders[key] = compile_builder(Body(value.__class__, version, flexible=flexible))
    parts: list[Any] = []
    build(value, parts, [])
    return _join(parts)


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
