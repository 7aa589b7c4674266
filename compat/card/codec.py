"""Messages as dicts with Kafka's field names, encoded and decoded by `wire`.

A field that is missing in a request takes the schema's default; a field that the version does not have is left out, so
that one dict serves all versions of an API.
"""

from __future__ import annotations

import functools
import struct
from typing import Any
from uuid import UUID

from compat.schemas.check import load_declarations, snake_case
from wire.codec import decode
from wire.errors import Malformed
from wire.framing import encode_request_frame
from wire.schema import MISSING, NEVER_FLEXIBLE, Field, Schema, first_flexible, schema_of

Message = dict[str, Any]
API_VERSIONS = 18


@functools.cache
def declared() -> dict[str, type]:
    """Every declared request and response, by name."""
    return load_declarations()


@functools.cache
def api_keys() -> dict[str, int]:
    """The keys of the APIs that `wire` declares, by Kafka's name of the API."""
    keys = {name.removesuffix("Request"): _schema(name).api_key for name in declared() if name.endswith("Request")}
    return {name: key for name, key in keys.items() if key is not None}


def known_versions(api: str) -> range:
    """The versions of an API that `wire` declares."""
    versions = _schema(f"{api}Request").versions
    return range(versions.lowest, versions.highest + 1)


def _schema(name: str) -> Schema:
    return schema_of(declared()[name])


def encode_request(
    api: str, version: int, message: Message, *, correlation_id: int = 1, client_id: str = "compat"
) -> bytes:
    """A complete request frame. Errors: AssertionError for a field that the API does not have."""
    request = _built(declared()[f"{api}Request"], version, message)
    parts = encode_request_frame(request, version, correlation_id=correlation_id, client_id=client_id)
    assert all(isinstance(part, bytes | bytearray | memoryview) for part in parts)
    return b"".join(parts)  # type: ignore[arg-type]


def _built(cls: type, version: int, message: Message) -> Any:
    given = {snake_case(key[0].upper() + key[1:]): value for key, value in message.items()}
    fields = {field.name: field for field in schema_of(cls).fields}
    assert given.keys() <= fields.keys(), f"{cls.__name__} has no {sorted(given.keys() - fields.keys())}"
    values = {}
    for name, field in fields.items():
        if name in given and version in field.versions:
            values[name] = _value(field, version, given[name])
        elif field.default is MISSING:
            values[name] = _default(field)
    return cls(**values)


def _default(field: Field) -> Any:
    """The value of a field that `wire` requires: Kafka's default of its type."""
    if field.is_array:
        return []
    return None if isinstance(field.kind, type) else field.kind.default


def _value(field: Field, version: int, value: Any) -> Any:
    if isinstance(field.kind, type) and value is not None:
        if field.is_array:
            return [_built(field.kind, version, each) for each in value]
        return _built(field.kind, version, value)
    if not isinstance(field.kind, type) and field.kind.name == "uuid":
        return [_id(each) for each in value] if field.is_array else _id(value)
    return value


def _id(value: bytes | UUID) -> UUID:
    return value if isinstance(value, UUID) else UUID(bytes=value)


def decode_response(api: str, version: int, payload: bytes, *, correlation_id: int = 1) -> Message:
    """Decode a response frame (without its length); every byte must be used. Errors: Malformed."""
    if len(payload) < 4:
        raise Malformed(f"a response of {len(payload)} bytes")
    (found,) = struct.unpack_from(">i", payload)
    if found != correlation_id:
        raise Malformed(f"the answer has the correlation id {found}, and the request {correlation_id}")
    start = 4
    key = api_keys()[api]
    if key != API_VERSIONS and version >= first_flexible.get(key, NEVER_FLEXIBLE):
        if payload[4:5] != b"\0":
            raise Malformed("the header of the response has tagged fields")
        start = 5
    cls = declared()[f"{api}Response"]
    return _shown(decode(cls, version, payload[start:], exact=True), version)


def _shown(message: Any, version: int) -> Message:
    found: Message = {}
    for field in schema_of(type(message)).fields:
        if version in field.versions:
            value = getattr(message, field.name)
            name = "".join(part[0].upper() + part[1:] for part in field.name.split("_"))
            found[name] = (
                [_plain(each, version) for each in value] if isinstance(value, list) else _plain(value, version)
            )
    return found


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return _shown(value, version) if hasattr(type(value), "__schema__") else value
