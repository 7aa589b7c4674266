"""Records as text: lines to produce, formats to print, and JSON that loses nothing.

In JSON a key, a value or the value of a header is text where its bytes are UTF-8, `{"base64": "..."}` where they are
not, and null where there is none. What `consume --format json` prints, `produce --format json` takes.

A format is kcat's: %s value, %k key, %t topic, %p partition, %o offset, %T timestamp, %h headers, %S and %K the sizes
of value and key (-1 for null), %% a percent sign; and the escapes \\n \\t \\r \\\\ \\0 \\xHH.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

MAX_LINE_BYTES: Final = 100 << 20
READ_BYTES: Final = 64 << 10
MAX_INT64: Final = 2**63 - 1

Headers = Sequence[tuple[str, bytes | None]]

_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0"}
_PIECE: Final = re.compile(r"%(.?)", re.DOTALL)
_TIMESTAMP_TYPES: Final = {0: "CreateTime", 1: "LogAppendTime"}


class Outgoing(NamedTuple):
    """A record to be produced; what is None is for the client or the broker to choose."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None


class NotARecord(ValueError):
    """A line that is no record; says why."""


def unescape(text: str) -> bytes:
    """The bytes that a word of the command line stands for. Raises ArgumentTypeError for an unknown escape."""

    def replace(match: re.Match[str]) -> str:
        word = match[1]
        if word.startswith("x") and len(word) == 3:
            # Any byte: brought through the text as a surrogate.
            return bytes([int(word[1:], 16)]).decode("utf-8", "surrogateescape")
        if word not in _ESCAPES:
            raise ArgumentTypeError(f"the escape \\{word} is unknown; there are \\n \\t \\r \\\\ \\0 \\xHH")
        return _ESCAPES[word]

    if text.endswith("\\") and len(text) - len(text.rstrip("\\")) & 1:
        raise ArgumentTypeError(f"{text!r} ends in the middle of an escape")
    return _ESCAPE.sub(replace, text).encode("utf-8", "surrogateescape")


def separator(text: str) -> bytes:
    """Bytes that separate, of which there has to be one at least."""
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


def lines(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """The pieces of a stream between delimiters, as they come; an unfinished last one counts.

    Raises NotARecord for one of more than MAX_LINE_BYTES.
    """
    rest = bytearray()
    read = getattr(stream, "read1", stream.read)
    while chunk := read(READ_BYTES):
        # What was searched before is searched again only where a delimiter may span both.
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        if rest.find(delimiter, searched) >= 0:
            *whole, unfinished = bytes(rest).split(delimiter)
            rest = bytearray(unfinished)
            yield from whole
        if len(rest) > MAX_LINE_BYTES:
            raise NotARecord(f"more than {MAX_LINE_BYTES} bytes without a delimiter")
    if rest:
        yield bytes(rest)


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
        # A lone surrogate can be written as an escape in JSON, and is no text.
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise NotARecord(f"{what} is no text: {error.reason}") from error
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise NotARecord(f"{what} is no base64: {error}") from error
    raise NotARecord(f'{what} is neither text nor {{"base64": "..."}} nor null')


def record_to_json(record: Any) -> bytes:
    """A record of the client's as one line of JSON, without its end."""
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
    """The record of a line as `record_to_json` makes it; fields may be missing, and where it came from is ignored.

    Raises NotARecord.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotARecord(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise NotARecord("no JSON object")
    if unknown := sorted(set(fields) - _FIELDS):
        raise NotARecord(f"the field {unknown[0]!r} is unknown; there are {', '.join(sorted(_FIELDS))}")
    headers: list[tuple[str, bytes | None]] = []
    listed = fields.get("headers") or []
    if not isinstance(listed, list):
        raise NotARecord("headers is no list")
    for each in listed:
        if not isinstance(each, dict) or set(each) != {"key", "value"} or not isinstance(each["key"], str):
            raise NotARecord('a header is not of the form {"key": "...", "value": ...}')
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
        raise NotARecord(f"{name} is {value!r}, no number between 0 and {at_most}")
    return value


Render = Callable[[Any], bytes]


def compile_format(text: str, null: bytes) -> Render:
    """The function that prints a record by a format; `null` stands for what is null. Raises ArgumentTypeError."""
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
        raise ArgumentTypeError(f"%{letter} is unknown; there are {', '.join('%' + name for name in found)}")
    return found[letter]
