"""Encode and decode messages.

    request = decode(HeartbeatRequest, 4, body)
    reply = encode(HeartbeatResponse(error_code=ErrorCode.NONE), 4)

The parser and the builder of a (class, version) are generated at their first use (constructs.py) and kept.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Final, TypeVar

from wire.errors import Malformed
from wire.schema import schema_of
from wire.structs import Body, Builder, Parser, compile_builder, compile_parser, construct_for
from wire.types import Opaque
from wire.varint import Buffer

M = TypeVar("M")

_parsers: Final[dict[tuple[type, int], Parser]] = {}
_builders: Final[dict[tuple[type, int], Builder]] = {}
_element_builders: Final[dict[tuple[type, type, int], Builder]] = {}
_join: Final = b"".join

NO_LIMIT: Final = sys.maxsize


def decode(cls: type[M], version: int, data: Buffer, *, exact: bool = False, max_elements: int = NO_LIMIT) -> M:
    """The message in `data`. Extra bytes after it are ignored, as in Kafka, unless `exact`.

    Raises only Malformed for bytes that do not decode, and KafkaError UNSUPPORTED_VERSION if the class has no such
    version. Its work is bounded by the size of `data` and by `max_elements`: it raises TooManyElements (a Malformed) if
    all arrays of the message together, including those in tagged fields, announce more elements. Each count is checked
    before its elements are read. Records are views over `data`; everything else is copied.
    """
    value, position = decode_prefix(cls, version, data, max_elements=max_elements)
    if exact and position != len(data):
        raise Malformed(f"{len(data) - position} bytes after {cls.__name__}")
    return value


def decode_prefix(
    cls: type[M], version: int, data: Buffer, position: int = 0, *, max_elements: int = NO_LIMIT
) -> tuple[M, int]:
    """The message at `position` of `data`, and the position after it. Errors as for decode()."""
    parse = _parsers.get((cls, version))
    if parse is None:
        parse = _parsers[cls, version] = compile_parser(construct_for(cls, version))
    try:
        return parse(data, position, len(data), max_elements)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"{cls.__name__} version {version}: {error}") from error


def encode(message: object, version: int) -> bytes:
    """The bytes of `message`, which must not contain an Opaque.

    Raises NotInVersion for a value that the version cannot express and that is not ignorable, and struct.error for a
    number out of range.
    """
    return _join(_build(message, version, []))


def encode_element(value: object, message: type, version: int) -> bytes:
    """The bytes of a struct in an array of a message class, in one of its versions.

    An array may hold such bytes instead of the struct. A caller can encode a frequent answer once, and a long reply
    does not need objects for all of its elements at the same time. Errors as for encode().
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
    """The encoding in pieces: bytes, with the Opaques left in place for the caller to send. Records in memory of 64 KiB
    or more are pieces of their own.
    """
    opaques: list[int] = []
    parts = _build(message, version, opaques)
    if not opaques:
        return [_join(parts)]
    joined: list[bytes | Opaque] = []
    start = 0
    for index in opaques:
        if start < index:
            joined.append(_join(parts[start:index]))
        joined.append(parts[index])
        start = index + 1
    if start < len(parts):
        joined.append(_join(parts[start:]))
    return joined


def _build(message: object, version: int, opaques: list[int]) -> list[Any]:
    cls = message.__class__
    build = _builders.get((cls, version))
    if build is None:
        build = _builders[cls, version] = compile_builder(construct_for(cls, version))
    parts: list[Any] = []
    build(message, parts, opaques)
    return parts
