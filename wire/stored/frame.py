"""The frames around stored records.

Metadata log and `__remote_log_metadata`: varints: frame version (1), record type, record version; then the body.
Coordinator topics: a key starts with its record type (int16), a value with its version (int16).

Source: AbstractApiMessageSerde and CoordinatorRecordSerde of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from wire.codec import decode, encode
from wire.errors import Malformed
from wire.schema import declared_in, schema_of
from wire.varint import Buffer, decode_uvarint, encode_uvarint

M = TypeVar("M")

FRAME_VERSION = 1
_short = struct.Struct(">h")


def record_types(module: ModuleType, suffix: str = "") -> dict[int, type]:
    """The stored classes of a module that have a record type, by that number.

    Keys and values of coordinator topics share their numbers; there `suffix` selects "Key" or "Value".
    """
    numbers = {cls: schema_of(cls).record_type for cls in declared_in(module) if cls.__name__.endswith(suffix)}
    return {number: cls for cls, number in numbers.items() if number is not None}


def encode_record(record: object, version: int) -> bytes:
    """The frame and body of a metadata or remote log metadata record."""
    record_type = schema_of(type(record)).record_type
    assert record_type is not None, f"{type(record).__name__} has no record type"
    return b"\x01" + encode_uvarint(record_type) + encode_uvarint(version) + encode(record, version)


def decode_record(data: Buffer, types: Mapping[int, type]) -> tuple[Any, int]:
    """The record in `data` and its version.

    Raises Malformed also for another frame version, an unknown type or version, or extra bytes: each of them stops a
    reader of the metadata log.
    """
    try:
        frame_version, position = decode_uvarint(data, 0)
        record_type, position = decode_uvarint(data, position)
        version, position = decode_uvarint(data, position)
    except IndexError as error:
        raise Malformed("a record frame that is cut") from error
    if frame_version != FRAME_VERSION:
        raise Malformed(f"frame version {frame_version}, where only {FRAME_VERSION} exists")
    cls = types.get(record_type)
    if cls is None or version not in schema_of(cls).versions:
        raise Malformed(f"record type {record_type} version {version} is unknown")
    return decode(cls, version, memoryview(data)[position:], exact=True), version


def encode_key(key: object) -> bytes:
    """A coordinator's key: its record type and its body, which exists only in version 0."""
    record_type = schema_of(type(key)).record_type
    assert record_type is not None, f"{type(key).__name__} has no record type"
    return _short.pack(record_type) + encode(key, 0)


def decode_key(data: Buffer, types: Mapping[int, type]) -> Any | None:
    """The key in `data`; None for a record type of a later broker, whose records the caller skips."""
    cls = types.get(_read_short(data))
    return None if cls is None else decode(cls, 0, memoryview(data)[2:])


def encode_value(value: object, version: int) -> bytes:
    """A version followed by the body, the format of coordinators' values and of some files."""
    return _short.pack(version) + encode(value, version)


def decode_value(cls: type[M], data: Buffer) -> M:
    """The body after its version; Malformed for a version that is not declared."""
    version = _read_short(data)
    if version not in schema_of(cls).versions:
        raise Malformed(f"{cls.__name__} version {version} is unknown")
    return decode(cls, version, memoryview(data)[2:])


def _read_short(data: Buffer) -> int:
    if len(data) < 2:
        raise Malformed(f"{len(data)} bytes, where a version of 2 is due")
    return int(_short.unpack_from(data)[0])
