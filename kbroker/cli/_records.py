"""Converts records to and from text: lines to produce, output formats, and lossless JSON.

In JSON, a key, a value or the value of a header is text if its bytes are UTF-8, otherwise `{"base64": "..."}`, or null.
`produce --format json` reads what `consume --format json` prints.

Output formats are kcat's: %s value, %k key, %t topic, %p partition, %o offset, %T timestamp, %h headers, %S and %K the
sizes of value and key (-1 for null), %% a percent sign; and the escapes \\n \\t \\r \\\\ \\0 \\xHH.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

MAX_LINE_BYTES: Final = 100 << 20
READ_BYTES: Final = 256 << 10
MAX_INT64: Final = 2**63 - 1

Headers = Sequence[tuple[str, bytes | None]]

_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0"}
_PIECE: Final = re.compile(r"%(.?)", re.DOTALL)
_TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}


class Outgoing(NamedTuple):
    """A record to produce; the client or the broker chooses the values that are None."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None


class NotARecord(ValueError):
    """A line that is not a record, with the reason."""


def unescape(text: str) -> bytes:
    """The bytes of an argument with escapes. Raises ArgumentTypeError for an unknown escape."""

    def replace(match: re.Match[str]) -> str:
        word = match[1]
        if word.startswith("x") and len(word) == 3:
            # Represent any byte as a surrogate in the text.
            return bytes([int(word[1:], 16)]).decode("utf-8", "surrogateescape")
        if word not in _ESCAPES:
            raise ArgumentTypeError(f"the escape \\{word} is unknown; use \\n \\t \\r \\\\ \\0 \\xHH")
        return _ESCAPES[word]

    if text.endswith("\\") and len(text) - len(text.rstrip("\\")) & 1:
        raise ArgumentTypeError(f"{text!r} ends in the middle of an escape")
    return _ESCAPE.sub(replace, text).encode("utf-8", "surrogateescape")


def separator(text: str) -> bytes:
    """A separator of at least one byte."""
    found = unescape(text)
    if not found:
        raise ArgumentTypeError("a separator cannot be empty")
    return found


def header(text: str) -> tuple[str, bytes]:
    """The name and value of `name=value`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, value.encode("utf-8", "surrogateescape")


def lines(stream: BinaryIO, delimiter: bytes, before_read: Callable[[], object] = bool) -> Iterator[list[bytes]]:
    """The pieces of a stream between delimiters, in lists as they arrive, including an unfinished last one.

    `before_read` is called before each read, which may block.
    Raises NotARecord for a piece of more than MAX_LINE_BYTES.
    """
    rest = bytearray()
    read = getattr(stream, "read1", stream.read)
    while True:
        before_read()
        chunk = read(READ_BYTES)
        if not chunk:
            break
        # Search only new bytes, plus the old ones at which a delimiter may begin.
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, searched) >= 0:
            *whole, unfinished = bytes(rest).split(delimiter)
            rest = bytearray(unfinished)
            yield whole
        if len(rest) > MAX_LINE_BYTES:
            raise NotARecord(f"more than {MAX_LINE_BYTES} bytes without a delimiter")
    if rest:
        yield [bytes(rest)]


def lossless(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_lossless(value: Any, what: str) -> bytes | None:
    """The bytes of `lossless`. Raises NotARecord for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        # JSON escapes can contain a lone surrogate, which is not valid text.
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise NotARecord(f"{what} is not text: {error.reason}") from error
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise NotARecord(f"{what} is not base64: {error}") from error
    raise NotARecord(f'{what} is neither text nor {{"base64": "..."}} nor null')


def record_to_json(record: Any) -> bytes:
    """A record of the client as one line of JSON, without the line end."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": _TIMESTAMP_TYPES.get(record.timestamp_type),
        "key": lossless(record.key),
        "value": lossless(record.value),
        "headers": [{"key": name, "value": lossless(value)} for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def record_from_json(line: bytes) -> Outgoing:
    """Parse a line of `record_to_json`. Fields may be missing; topic and offset are ignored.

    Raises NotARecord.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotARecord(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise NotARecord("not a JSON object")
    if unknown := sorted(set(fields) - _FIELDS):
        raise NotARecord(f"the field {unknown[0]!r} is unknown; the fields are {', '.join(sorted(_FIELDS))}")
    headers: list[tuple[str, bytes | None]] = []
    listed = fields.get("headers") or []
    if not isinstance(listed, list):
        raise NotARecord("headers is not a list")
    for each in listed:
        if not isinstance(each, dict) or set(each) != {"key", "value"} or not isinstance(each["key"], str):
            raise NotARecord('a header is not of the form {"key": "...", "value": ...}')
        try:
            each["key"].encode(errors="surrogateescape")  # JSON escapes can contain a lone surrogate
        except UnicodeEncodeError as error:
            raise NotARecord(f"the name of a header is not text: {error.reason}") from error
        headers.append((each["key"], from_lossless(each["value"], f"header {each['key']!r}")))
    return Outgoing(
        key=from_lossless(fields.get("key"), "key"),
        value=from_lossless(fields.get("value"), "value"),
        headers=headers,
        partition=_number(fields, "partition", at_most=2**31 - 1),
        timestamp=_number(fields, "timestamp", at_most=MAX_INT64),
    )


_FIELDS: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"})


def _number(fields: dict[str, Any], name: str, *, at_most: int) -> int | None:
    value = fields.get(name)
    if value is None or (name == "timestamp" and value == -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= at_most:
        raise NotARecord(f"{name} is {value!r}, not a number between 0 and {at_most}")
    return value


Render = Callable[[Any], bytes]


@dataclass(slots=True, eq=False)
class OnlyValues:
    """Formats a record as its value and `end`, and many values at once."""

    null: bytes
    end: bytes

    def __call__(self, record: Any) -> bytes:
        return self.all([record.value])

    def all(self, values: Sequence[bytes | None]) -> bytes:
        """The text of these values."""
        if None in values:
            values = [self.null if value is None else value for value in values]
        return self.end.join([*values, b""])  # type: ignore[list-item]


def compile_format(text: str, null: bytes) -> Render:
    """Compile a format to a function that formats a record; `null` replaces null. Raises ArgumentTypeError."""
    pieces: list[Render] = []
    position = 0
    for match in _PIECE.finditer(text):
        pieces.append(_constant(unescape(text[position : match.start()])))
        pieces.append(_piece(match[1], null))
        position = match.end()
    pieces.append(_constant(unescape(text[position:])))
    return lambda record: b"".join(piece(record) for piece in pieces)


def _constant(data: bytes) -> Render:
    return lambda _record: data


def _piece(letter: str, null: bytes) -> Render:
    found: dict[str, Render] = {
        "s": lambda record: null if record.value is None else record.value,
        "k": lambda record: null if record.key is None else record.key,
        "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "h": lambda record: b",".join(
            name.encode("utf-8", "surrogatepass") + b"=" + (null if value is None else value)
            for name, value in record.headers
        ),
        "%": lambda _record: b"%",
    }
    if letter not in found:
        raise ArgumentTypeError(f"%{letter} is unknown; use {', '.join('%' + name for name in found)}")
    return found[letter]
