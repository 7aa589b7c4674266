"""A codec for any API in any version, driven by Apache Kafka's own JSON schemas from its jar.

This codec does not use `wire`, on purpose: a comparison of the two brokers must not share bugs with one of them.
A message is a dict with Kafka's field names; omitted fields take the schema's default. A uuid is 16 bytes, records are
bytes.

Source: the schema language of Kafka's message generator, as its JSON files use it.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compat.kafka import libraries

Message = dict[str, Any]

_NUMBERS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
}
_VARIABLE = {"string", "bytes", "records"}


@dataclass(frozen=True)
class Versions:
    """A range of versions in Kafka's notation: `3+`, `0-4`, `2`, `none`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        """Parse; no text or `none` is the empty range."""
        if not text or text == "none":
            return cls(0, -1)
        low, dash, high = text.rstrip("+").partition("-")
        return cls(int(low), 32767 if text.endswith("+") else int(high) if dash else int(low))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


@dataclass
class Field:
    """One field of a schema."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    fields: list[Field] = field(default_factory=list)

    def default_value(self) -> Any:
        """The value of a field that the caller omitted."""
        if self.default == "null":
            return None
        if self.type.startswith("[]"):
            return []
        if self.type in _NUMBERS:
            return _number(self.type, self.default)
        if self.type == "uuid":
            return bytes(16)
        if self.type in _VARIABLE:
            return self.default or "" if self.type == "string" else b""
        return {}


def _number(kind: str, text: Any) -> Any:
    if kind == "bool":
        return text in (True, "true")
    if kind == "float64":
        return float(text or 0)
    return int(str(text or 0), 0)


@dataclass
class Schema:
    """A request or a response."""

    name: str
    api_key: int
    valid: Versions
    flexible: Versions
    fields: list[Field]


def _fields(declared: list[Mapping[str, Any]], commons: Mapping[str, list[Mapping[str, Any]]]) -> list[Field]:
    result = []
    for entry in declared:
        kind = entry["type"]
        nested = entry.get("fields") or commons.get(kind.removeprefix("[]"), [])
        result.append(
            Field(
                name=entry["name"],
                type=kind,
                versions=Versions.parse(entry.get("versions")),
                nullable=Versions.parse(entry.get("nullableVersions")),
                tagged=Versions.parse(entry.get("taggedVersions")),
                tag=entry.get("tag", -1),
                default=entry.get("default"),
                fields=_fields(nested, commons),
            )
        )
    return result


@functools.cache
def _schemas(jar_name: str = "kafka-clients-*.jar", names: str = r"\w+(Request|Response)") -> dict[str, Schema]:
    result = {}
    jar = next(libraries().glob(jar_name))
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if not re.fullmatch(rf"(common/)?message/{names}\.json", name):
                continue
            text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
            declared = json.loads(text)
            commons = {common["name"]: common["fields"] for common in declared.get("commonStructs", [])}
            result[declared["name"]] = Schema(
                name=declared["name"],
                api_key=declared["apiKey"],
                valid=Versions.parse(declared["validVersions"]),
                flexible=Versions.parse(declared.get("flexibleVersions")),
                fields=_fields(declared.get("fields", []), commons),
            )
    return result


def schema(name: str) -> Schema:
    """The schema of `ProduceRequest`, `FetchResponse`, ..."""
    return _schemas()[name]


def api_names() -> dict[int, str]:
    """API names by key: 0 -> `Produce`."""
    return {each.api_key: name.removesuffix("Request") for name, each in _schemas().items() if name.endswith("Request")}


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_size(size: int | None, *, flexible: bool, wide: bool) -> bytes:
    if flexible:
        return uvarint(0 if size is None else size + 1)
    return struct.pack(">i" if wide else ">h", -1 if size is None else size)


def _encode_value(each: Field, kind: str, value: Any, version: int, *, flexible: bool) -> bytes:
    if kind.startswith("[]"):
        head = _encode_size(None if value is None else len(value), flexible=flexible, wide=True)
        return head + b"".join(_encode_value(each, kind[2:], item, version, flexible=flexible) for item in value or [])
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    if kind == "uuid":
        return bytes(value)
    if kind in _VARIABLE:
        raw = value.encode() if isinstance(value, str) else value
        size = _encode_size(None if raw is None else len(raw), flexible=flexible, wide=kind != "string")
        return size + (raw or b"")
    if version in each.nullable and not each.type.startswith("[]"):
        return b"\xff" if value is None else b"\x01" + _encode_fields(each.fields, value, version, flexible=flexible)
    return _encode_fields(each.fields, value, version, flexible=flexible)


def _encode_fields(fields: list[Field], message: Message, version: int, *, flexible: bool) -> bytes:
    unknown = message.keys() - {each.name for each in fields}
    assert not unknown, f"no such fields: {unknown}"
    out, tags = [], []
    for each in fields:
        if version not in each.versions:
            continue
        value = message.get(each.name, each.default_value())
        if flexible and version in each.tagged:
            if each.name in message and value != each.default_value():
                tags.append((each.tag, _encode_value(each, each.type, value, version, flexible=True)))
        else:
            out.append(_encode_value(each, each.type, value, version, flexible=flexible))
    if flexible:
        out.append(uvarint(len(tags)))
        out += [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tags)]
    return b"".join(out)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool) -> bytes:
    """A request header, version 1 or 2."""
    head = struct.pack(">hhi", api_key, version, correlation_id)
    raw = None if client_id is None else client_id.encode()
    head += struct.pack(">h", -1) if raw is None else struct.pack(">h", len(raw)) + raw
    return head + (b"\x00" if flexible else b"")


def encode_body(name: str, version: int, message: Message) -> bytes:
    """The body of `name` (with its suffix Request or Response) in `version`."""
    declared = schema(name)
    return _encode_fields(declared.fields, message, version, flexible=version in declared.flexible)


def encode_request(
    api: str, version: int, message: Message, *, correlation_id: int = 1, client_id: str | None = "compat"
) -> bytes:
    """A complete request frame with its length; `api` without suffix."""
    declared = schema(f"{api}Request")
    flexible = version in declared.flexible
    head = request_header(declared.api_key, version, correlation_id, client_id, flexible=flexible)
    return framed(head + encode_body(f"{api}Request", version, message))


def framed(payload: bytes) -> bytes:
    """A payload with its length prefix."""
    return struct.pack(">i", len(payload)) + payload


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        taken = self.data[self.position : self.position + size]
        assert len(taken) == size, f"{size} bytes wanted at {self.position} of {len(self.data)}"
        self.position += size
        return taken

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def size(self, *, flexible: bool, wide: bool) -> int:
        return self.uvarint() - 1 if flexible else int(self.number(">i" if wide else ">h"))


def _decode_value(reader: _Reader, each: Field, kind: str, version: int, *, flexible: bool) -> Any:
    if kind.startswith("[]"):
        size = reader.size(flexible=flexible, wide=True)
        if size < 0:
            return None
        return [_decode_value(reader, each, kind[2:], version, flexible=flexible) for _ in range(size)]
    if kind in _NUMBERS:
        return reader.number(_NUMBERS[kind])
    if kind == "uuid":
        return reader.take(16)
    if kind in _VARIABLE:
        size = reader.size(flexible=flexible, wide=kind != "string")
        if size < 0:
            return None
        raw = reader.take(size)
        return raw.decode() if kind == "string" else raw
    if version in each.nullable and not each.type.startswith("[]") and reader.number(">b") < 0:
        return None
    return _decode_fields(reader, each.fields, version, flexible=flexible)


def _decode_fields(reader: _Reader, fields: list[Field], version: int, *, flexible: bool) -> Message:
    message: Message = {}
    tagged = {}
    for each in fields:
        if version not in each.versions:
            continue
        if flexible and version in each.tagged:
            tagged[each.tag] = each
            message[each.name] = each.default_value()
        else:
            message[each.name] = _decode_value(reader, each, each.type, version, flexible=flexible)
    if flexible:
        for _ in range(reader.uvarint()):
            tag, size = reader.uvarint(), reader.uvarint()
            if tag in tagged:
                message[tagged[tag].name] = _decode_value(reader, tagged[tag], tagged[tag].type, version, flexible=True)
            else:
                message.setdefault("?tags", {})[tag] = reader.take(size)
    return message


def decode_body(name: str, version: int, data: bytes) -> Message:
    """Decode a body; every byte must be used."""
    declared = schema(name)
    reader = _Reader(data)
    message = _decode_fields(reader, declared.fields, version, flexible=version in declared.flexible)
    assert reader.position == len(data), f"{len(data) - reader.position} bytes left after {name} v{version}"
    return message


def decode_tier_record(value: bytes) -> tuple[str, Message]:
    """A value of `__remote_log_metadata`: the name of its schema and its fields; every byte must be used."""
    reader = _Reader(value)
    frame, api_key, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    assert frame == 1, f"frame version {frame}"
    records = _schemas("kafka-storage-[0-9]*[0-9].jar", r"Remote\w+Record")
    declared = next(each for each in records.values() if each.api_key == api_key)
    message = _decode_fields(reader, declared.fields, version, flexible=version in declared.flexible)
    assert reader.position == len(value), f"{len(value) - reader.position} bytes left after {declared.name}"
    return declared.name, message


def decode_transaction(value: bytes) -> Message:
    """A value of `__transaction_state`, with its version; every byte must be used."""
    version, reader = struct.unpack_from(">h", value)[0], _Reader(value[2:])
    declared = _schemas("kafka-transaction-coordinator-*.jar", "TransactionLogValue")["TransactionLogValue"]
    message = _decode_fields(reader, declared.fields, version, flexible=version in declared.flexible)
    assert reader.position == len(value) - 2, f"{len(value) - 2 - reader.position} bytes left"
    return {"?version": version, **message}


def decode_response(api: str, version: int, payload: bytes, *, correlation_id: int = 1) -> Message:
    """Decode a response frame's payload: its header (with the expected correlation id), then its body."""
    assert struct.unpack(">i", payload[:4])[0] == correlation_id
    body = payload[4:]
    if version in schema(f"{api}Response").flexible and api != "ApiVersions":
        assert body[0] == 0, "tags in a response header"
        body = body[1:]
    return decode_body(f"{api}Response", version, body)
