"""Reads Java's properties format, the format of Kafka's settings files.

`=`, `:` or blanks end a key. `#` and `!` begin a comment line. A line that ends in an odd number of backslashes
continues on the next line, whose leading blanks are ignored. `\\uXXXX`, `\\t`, `\\n`, `\\r` and `\\f` are escapes; a
backslash before any other character stands for that character. If a key occurs twice, the last value wins.
Source: `java.util.Properties.load` (Java 17).
"""

from __future__ import annotations

import re

from kbroker.config.values import ConfigError

_BLANKS = " \t\f"
_KEY_AND_VALUE = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes, *, file_name: str) -> dict[str, str]:
    """The settings in a file's bytes.

    Errors  ConfigError for bytes that are not UTF-8 and for a malformed escape, with the line number
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(_decode(data, file_name)):
        match = _KEY_AND_VALUE.fullmatch(line)
        assert match is not None, "a line that ends in an odd number of backslashes was continued"
        try:
            found[_unescape(match[1])] = _unescape(match[2])
        except ValueError:
            raise ConfigError(f"{file_name}, line {number}: malformed \\uxxxx escape") from None
    return found


def _decode(data: bytes, file_name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file_name}, line {line}: byte 0x{data[error.start]:02x} is not valid UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigError(f"{file_name}, line {line}: NUL byte; this is not a properties file")
    return text


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments, joined with their continuations, each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        if not parts:
            start = number
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if continues else line)
        if not continues:
            lines.append((start, "".join(parts)))
            parts = []
    lines.append((start, "".join(parts)))
    return [(number, line) for number, line in lines if line]


def _unescape(text: str) -> str:
    """Errors: ValueError."""
    unescaped = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _character(found[2]), text)
    # Two escapes, a surrogate pair, encode a character outside the basic multilingual plane.
    return unescaped.encode("utf-16-be", "surrogatepass").decode("utf-16-be")


def _character(escaped: str) -> str:
    if escaped == "u":
        raise ValueError("no four hexadecimal digits")
    return _ESCAPES.get(escaped, escaped)
