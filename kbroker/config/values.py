"""Converts the text of a setting to a Python value and back, with Kafka's rules and error messages.

The syntax is Java's: blanks around a value are ignored, `TRUE` is true, `+5` is 5, `5_000` is not a number, and commas
separate the elements of a list. Source: `ConfigDef.parseType` and `ConfigDef.convertToString` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from enum import IntEnum
from math import isfinite
from typing import Final, TypeAlias

HIDDEN: Final = "[hidden]"
"""What is shown instead of a secret, as by Kafka."""


class Secret:
    """The text of a setting of type PASSWORD. Only `reveal` gives it, so no log line, error or traceback shows it.

    Source  `org.apache.kafka.common.config.types.Password`
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the code that sends it or computes with it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class SecretTexts(dict[str, str]):
    """The settings of a plug-in: only the plug-in knows which of them are secrets, so only the keys are shown."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: {HIDDEN}' for key in self)}}}"


Value: TypeAlias = bool | int | float | str | tuple[str, ...] | Secret | None


class Kind(IntEnum):
    """A setting's type; the numbers are those of DescribeConfigs (version 3 and later)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigError(ValueError):
    """An unusable setting. The message is for the user who wrote it."""


_MAX_SHOWN: Final = 10_000


class InvalidValue(ConfigError):
    """A value that its key does not allow, with Kafka's message."""

    def __init__(self, name: str, value: object, why: str) -> None:
        shown = str(value)
        if len(shown) > _MAX_SHOWN:  # a client may have sent it, and an answer has room for 32 KiB
            shown = f"{shown[:_MAX_SHOWN]}..."
        super().__init__(f"Invalid value {shown} for configuration {name}: {why}")


_BITS = {Kind.SHORT: 15, Kind.INT: 31, Kind.LONG: 63}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)", re.ASCII)
_KEY = re.compile(r"[\w.-]*")
_MAX_DIGITS = 40  # more than any long has, and too few to make int() slow


def key_of(text: str) -> str:
    """The key at the beginning of a malformed `key=value`, for an error: the rest may be a secret."""
    match = _KEY.match(text)
    assert match is not None
    return text if match[0] == text else f"{match[0]}..."


def as_boolean(text: str) -> bool | None:
    """The value of a boolean setting; None if the text is neither true nor false."""
    return {"true": True, "false": False}.get(text.strip().lower())


def parse(name: str, kind: Kind, text: str) -> Value:
    """Convert a text to a value of this kind.

    Errors  InvalidValue, with Kafka's message
    """
    trimmed = text.strip()
    if kind in _BITS:
        limit = 1 << _BITS[kind]
        if _INTEGER.fullmatch(trimmed) and len(trimmed) <= _MAX_DIGITS and -limit <= int(trimmed) < limit:
            return int(trimmed)
        raise InvalidValue(name, text, f"Not a number of type {kind.name}")
    if kind is Kind.BOOLEAN:
        if (flag := as_boolean(text)) is None:
            raise InvalidValue(name, text, "Expected value to be either true or false")
        return flag
    if kind is Kind.DOUBLE:
        if not _DOUBLE.fullmatch(trimmed):
            raise InvalidValue(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("dDfF"))
    if kind is Kind.LIST:
        return parse_list(trimmed)
    return Secret(trimmed) if kind is Kind.PASSWORD else trimmed


def parse_list(text: str) -> tuple[str, ...]:
    """The elements between commas, without duplicates; an empty text has none."""
    if not text:
        return ()
    return tuple(dict.fromkeys(element.strip() for element in text.split(",")))


def to_text(value: Value) -> str | None:
    """The value in Kafka's notation; None stays None, and a secret stays hidden."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _double_to_text(value)
    return str(value)


def _double_to_text(value: float) -> str:
    """Like Java's `Double.toString`: an exponent if below 10^-3 or at least 10^7, and always a decimal point."""
    if not isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, written = ("-", repr(-value)) if value < 0 else ("", repr(value))
    if "e" in written:
        mantissa, exponent = written.split("e")
        return f"{sign}{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
    whole, fraction = written.split(".")
    digits = (whole + fraction).lstrip("0").rstrip("0")
    exponent_ = len(whole) - 1 if whole != "0" else len(fraction.lstrip("0")) - len(fraction) - 1
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent_}"
