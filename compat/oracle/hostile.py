"""Hostile frames of every API: a valid request, with one thing wrong in a place that Kafka's schemas name.

The request has one element in each array and plausible values. A walk over its bytes notes where each length and count,
each string and each end of fields is; each mutation then changes one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compat.oracle.schema import (
    Field,
    Message,
    Schema,
    _decode_fields,
    _Reader,
    encode_request,
    framed,
    schema,
    uvarint,
)

HEADER = 2 + 2 + 4 + 2 + len("compat")  # key, version, correlation id, client id
_NUMBERS: Mapping[str, Any] = {
    "Acks": -1,
    "IsolationLevel": 0,
    "MaxBytes": 1 << 20,
    "PartitionMaxBytes": 1 << 20,
    "ReplicaId": -1,
    "SessionEpoch": -1,
    "MemberEpoch": -1,
    "GenerationId": -1,
    "GenerationIdOrMemberEpoch": -1,
    "Timestamp": -1,
    "NumPartitions": 1,
    "ReplicationFactor": 1,
    "TimeoutMs": 5_000,
    "timeoutMs": 5_000,
    "TransactionTimeoutMs": 60_000,
    "validateOnly": True,
    "ValidateOnly": True,
}
"""Values by name, so that a request is answered at once and changes nothing; other numbers are zero."""


def filled(declared: Schema, version: int) -> Message:
    """A message with one element in each array, and nothing null."""
    message = _filled(declared.fields, version)
    if declared.name == "MetadataRequest":  # the lowest versions create topics whose names are valid
        message["Topics"][0]["Name"] = "host/ile"
    return message


def _filled(fields: list[Field], version: int) -> Message:
    return {each.name: _value(each, each.type, version) for each in fields if version in each.versions}


def _value(each: Field, kind: str, version: int) -> Any:
    if kind.startswith("[]"):
        return [_value(each, kind[2:], version)]
    if kind == "string":
        return "hostile"
    if kind in ("bytes", "records"):
        return b"data"
    if kind == "uuid":
        return bytes(15) + b"\x07"
    if kind == "bool":
        return _NUMBERS.get(each.name, False)
    if kind == "float64":
        return 0.0
    if kind.startswith(("int", "uint")):
        return _NUMBERS.get(each.name, 0)
    return _filled(each.fields, version)


class Mark(NamedTuple):
    """A length, a count or the number of tags, at [start, end) of a body; `size` is its value, -1 for null."""

    start: int
    end: int
    kind: str
    size: int


@dataclass
class _Marking(_Reader):
    """A reader that notes the places of lengths."""

    data: bytes
    position: int = 0
    marks: list[Mark] = field(default_factory=list)
    inner: bool = False

    def uvarint(self) -> int:
        start = self.position
        value = super().uvarint()
        if not self.inner:
            self.marks.append(Mark(start, self.position, "tags", value))
        return value

    def size(self, *, flexible: bool, wide: bool) -> int:
        start, self.inner = self.position, True
        size = super().size(flexible=flexible, wide=wide)
        self.inner = False
        self.marks.append(Mark(start, self.position, "compact" if flexible else "int32" if wide else "int16", size))
        return size


def marks(declared: Schema, version: int, body: bytes) -> list[Mark]:
    """The places of all lengths, counts and numbers of tags in a body."""
    reader = _Marking(body)
    _decode_fields(reader, declared.fields, version, flexible=version in declared.flexible)
    return reader.marks


@dataclass(frozen=True)
class Hostile:
    """One frame. `what` names the mutation, and `place` the number of the mark or byte."""

    api: str
    version: int
    what: str
    place: int
    frame: bytes

    def __str__(self) -> str:
        return f"{self.api} v{self.version}: {self.what} at {self.place}"


_LENGTHS = {"int16": ">h", "int32": ">i"}


def _length(kind: str, size: int) -> bytes:
    return uvarint(size + 1) if kind == "compact" else struct.pack(_LENGTHS[kind], size)


def hostile_frames(api: str, version: int) -> Iterator[Hostile]:
    """The valid request ("nothing wrong"), then all its mutations."""
    declared = schema(f"{api}Request")
    whole = encode_request(api, version, filled(declared, version))[4:]
    flexible = version in declared.flexible
    start = HEADER + flexible
    head, body = whole[:start], whole[start:]

    def frame(what: str, place: int, data: bytes, *, header: bytes = head) -> Hostile:
        return Hostile(api, version, what, place, framed(header + data))

    yield frame("nothing wrong", 0, body)
    for cut in sorted({0, len(body) // 3, 2 * len(body) // 3, len(body) - 1} - {len(body), -1}):
        yield frame("cut", cut, body[:cut])
    yield frame("bytes after it", len(body), body + b"\0surplus")
    found = marks(declared, version, body)
    for number, (at, end, kind, size) in enumerate(found):
        if kind == "tags":
            continue
        yield frame(
            "null", number, body[:at] + _length(kind, -1) + body[end + (max(size, 0) if kind == "int16" else 0) :]
        )
        yield frame("a length beyond the end", number, body[:at] + _length(kind, size + 30_000) + body[end:])
        yield frame("a length of one more", number, body[:at] + _length(kind, size + 1) + body[end:])
        if kind == "compact":
            yield frame("a huge length", number, body[:at] + b"\xff\xff\xff\xff\x0f" + body[end:])
            yield frame("a varint of six bytes", number, body[:at] + b"\x80\x80\x80\x80\x80\x01" + body[end:])
            yield frame("a length of two bytes for one", number, body[:at] + bytes([size + 1 | 0x80, 0]) + body[end:])
        else:
            yield frame(
                "a huge length",
                number,
                body[:at] + _length(kind, (1 << (15 if kind == "int16" else 31)) - 1) + body[end:],
            )
            yield frame("a length of -2", number, body[:at] + _length(kind, -2) + body[end:])
    text = body.find(b"hostile")
    if text >= 0:
        yield frame("text that is not UTF-8", text, body[:text] + b"ho\xc3\x28ile" + body[text + 7 :])
        yield frame("text with a NUL", text, body[:text] + b"ho\0tile" + body[text + 7 :])
    tags = [mark for mark in found if mark.kind == "tags" and mark.size == 0]
    if tags:
        at, end, *_ = tags[-1]
        for what, changed in (
            ("an unknown tag", b"\x01\x63\x02ab"),
            ("a tag twice", b"\x02\x63\x00\x63\x00"),
            ("tags in descending order", b"\x02\x63\x00\x62\x00"),
            ("a tag beyond the end", b"\x01\x63\x7f"),
            ("more tags than bytes", b"\x7f\x63\x00"),
            ("2^32-1 tags", b"\xff\xff\xff\xff\x0f"),
        ):
            yield frame(what, at, body[:at] + changed + body[end:])
        yield frame("a tag in the header", 0, body, header=head[:-1] + b"\x01\x63\x02ab")
        yield frame("a header tag beyond the end", 0, body, header=head[:-1] + b"\x01\x63\xff\x7f")
    for wrong in (-1, declared.valid.high + 1, 32767):
        yield frame("version", wrong, body, header=head[:2] + struct.pack(">h", wrong) + head[4:])
    yield frame("a client id of -2 bytes", 0, body, header=head[:8] + struct.pack(">h", -2) + head[16:])
    yield frame("a client id beyond the end", 0, body, header=head[:8] + struct.pack(">h", 32_000) + head[10:])
    yield frame("no client id", 0, body, header=head[:8] + struct.pack(">h", -1) + head[16:])
