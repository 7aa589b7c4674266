"""Converts parsed values to the values of a Spark schema, or explains why they do not fit.

A schema has the form of `StructType.jsonValue()`, so that this module does not need PySpark. A converter takes a value
from a parser and returns what Arrow accepts for the field's type. A value that does not fit raises WrongValue, which
names the field and shows the value. Types are never converted silently: a number is not accepted as a string, and "12"
is not a number.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from math import inf, isfinite, isinf
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import pyarrow as pa

from kbroker.spark.errors import InvalidOption

Schema: TypeAlias = Mapping[str, Any]
"""A struct as in `StructType.jsonValue()`: {"type": "struct", "fields": [{"name", "type", "nullable"}, ...]}."""
Converter: TypeAlias = Callable[[Any, str], Any]

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_SHOWN: Final = 40
_MAX_FLOAT: Final = 3.4028235677973362e38
"""The smallest number that would round to infinity in 32 bits."""
# Spark's decimals have up to 38 digits, more than the default precision of 28.
_DIGITS: Final = Context(prec=80)


class WrongValue(ValueError):
    """A value that does not fit the schema; the message names the field."""


class FieldType(NamedTuple):
    """How values of a type are stored in Arrow, and converted. The converter is not called for nulls."""

    arrow: pa.DataType
    convert: Converter


def _refuse_duplicates(schema: Schema) -> None:
    """Spark treats column names that differ only in case as equal."""
    known: set[str] = set()
    for each in schema["fields"]:
        if each["name"].lower() in known:
            raise InvalidOption(
                f"the schema's field {each['name']!r} has the name of another column",
                remedy="rename one of them in the schema",
            )
        known.add(each["name"].lower())


def number(text: str) -> float | Decimal:
    """The number in a text as a float, or exactly if a float would be infinite. Errors: WrongValue, ValueError."""
    value = float(text)
    return exact_number(text) if isinf(value) else value


def exact_number(text: str) -> Decimal:
    """The exact number in a text. Errors: WrongValue if it is not a number, or its exponent is too large."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise WrongValue(f"the value has the number {text[:_SHOWN]}, which is too large or too small") from None


def shown(value: Any) -> str:
    """A value for a message: truncated, and with its type."""
    text = f'"{value}"' if isinstance(value, str) else str(value) if isinstance(value, Decimal) else repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float() | Decimal():
            return f"the number {text}"
        case str():
            return f"the string {text}"
        case list():
            return "an array"
        case dict():
            return "an object"
    return f"{type(value).__name__} {text}"


def field_type(kind: Any, *, allows_unknown: bool) -> FieldType:
    """The type of a field. Errors: InvalidOption for a type to which values cannot be decoded."""
    if isinstance(kind, str):
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if found := _DECIMAL.fullmatch(kind):
            precision, scale = int(found[1]), int(found[2])
            return FieldType(pa.decimal128(precision, scale), _decimal(precision, scale))
    elif kind["type"] == "struct":
        return struct_type(kind, allows_unknown=allows_unknown)
    elif kind["type"] == "array":
        each = field_type(kind["elementType"], allows_unknown=allows_unknown)
        return FieldType(pa.list_(each.arrow), _array(each.convert, kind.get("containsNull", True)))
    elif kind["type"] == "map":
        if kind["keyType"] != "string":
            raise InvalidOption("the schema has a map whose keys are not strings", remedy="use strings as keys")
        each = field_type(kind["valueType"], allows_unknown=allows_unknown)
        return FieldType(pa.map_(pa.string(), each.arrow), _map(each.convert, kind.get("valueContainsNull", True)))
    raise InvalidOption(
        f"the schema has the type {kind if isinstance(kind, str) else kind['type']}, to which values cannot be decoded",
        remedy=f"use one of {', '.join(_SIMPLE)}, decimal, array, map, struct",
    )


def struct_type(schema: Schema, *, allows_unknown: bool) -> FieldType:
    """A struct, whose converter converts a dict to a dict with every field of the schema."""
    _refuse_duplicates(schema)
    types = {each["name"]: field_type(each["type"], allows_unknown=allows_unknown) for each in schema["fields"]}
    nullable = {each["name"] for each in schema["fields"] if each.get("nullable", True)}

    def convert(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(path, value, "an object")
        found: dict[str, Any] = {}
        for name, (_, convert_field) in types.items():
            held = value.get(name)
            if held is not None:
                found[name] = convert_field(held, _below(path, name))
            elif name in nullable:
                found[name] = None
            else:
                what = "is null" if name in value else "is missing"
                raise WrongValue(f"field {_below(path, name)} {what}, which the schema does not allow")
        if not allows_unknown and not types.keys() >= value.keys():
            unknown = ", ".join(sorted(_below(path, str(name)) for name in value.keys() - types.keys()))
            raise WrongValue(f"the schema has no field {unknown}")
        return found

    return FieldType(pa.struct([pa.field(name, each.arrow) for name, each in types.items()]), convert)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def wrong(path: str, value: Any, expected: str) -> WrongValue:
    """An error with the field, the value, and what was expected."""
    return WrongValue(f"{f'field {path}' if path else 'the value'} is {shown(value)} instead of {expected}")


def _string(value: Any, path: str) -> str:
    if isinstance(value, UUID):  # Avro's logical type
        return str(value)
    if not isinstance(value, str):
        raise wrong(path, value, "a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WrongValue(f"field {path} has half of a surrogate pair, which is not a character") from None
    return value


def _integer(bits: int) -> Converter:
    limit = 1 << (bits - 1)

    def convert(value: Any, path: str) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise wrong(path, value, f"an integer of {bits} bits")
        return value

    return convert


def _double(value: Any, path: str) -> float:
    if type(value) is float:
        return value
    if type(value) not in (int, Decimal):
        raise wrong(path, value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = inf
    if not isfinite(found):
        raise wrong(path, value, "a number of 64 bits")
    return found


def _float(value: Any, path: str) -> float:
    found = _double(value, path)
    if isfinite(found) and abs(found) >= _MAX_FLOAT:
        raise wrong(path, value, "a number of 32 bits")
    return found


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(path, value, "a boolean")
    return value


def _parsed(parse: Callable[[Any], Any], expected: str) -> Converter:
    def convert(value: Any, path: str) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong(path, value, expected) from None

    return convert


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)


def _date(value: Any) -> date:
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    return value if is_date else date.fromisoformat(value)


def _time(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    """A time without a zone is in UTC."""
    found = _time(value)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_to_local_time = _parsed(_time, "a time like 2026-01-31T12:00:00")


def _timestamp_ntz(value: Any, path: str) -> datetime:
    found: datetime = _to_local_time(value, path)
    if found.tzinfo is not None:
        raise wrong(path, value, "a time without a zone")
    return found


def _decimal(precision: int, scale: int) -> Converter:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)
    expected = f"a decimal of {precision} digits, {scale} of them after the decimal point"

    def convert(value: Any, path: str) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise wrong(path, value, expected)
        try:
            found = Decimal(str(value) if isinstance(value, float) else value)
            rounded = found.quantize(unit, context=_DIGITS)
            if rounded != found or rounded.copy_abs() >= limit:
                raise wrong(path, value, expected)
        except InvalidOperation:
            raise wrong(path, value, expected) from None
        return rounded

    return convert


def _array(convert_one: Converter, allows_null: bool) -> Converter:
    def convert(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(path, value, "an array")
        return [_held(convert_one, one, f"{path}[{at}]", allows_null) for at, one in enumerate(value)]

    return convert


def _map(convert_one: Converter, allows_null: bool) -> Converter:
    def convert(value: Any, path: str) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise wrong(path, value, "an object")
        return [
            (_string(key, path), _held(convert_one, one, f"{path}.{key}", allows_null)) for key, one in value.items()
        ]

    return convert


def _held(convert: Converter, value: Any, path: str, allows_null: bool) -> Any:
    if value is not None:
        return convert(value, path)
    if not allows_null:
        raise WrongValue(f"field {path} is null, which the schema does not allow")
    return None


_SIMPLE: Final[Mapping[str, FieldType]] = {
    "string": FieldType(pa.string(), _string),
    "byte": FieldType(pa.int8(), _integer(8)),
    "short": FieldType(pa.int16(), _integer(16)),
    "integer": FieldType(pa.int32(), _integer(32)),
    "long": FieldType(pa.int64(), _integer(64)),
    "float": FieldType(pa.float32(), _float),
    "double": FieldType(pa.float64(), _double),
    "boolean": FieldType(pa.bool_(), _boolean),
    "binary": FieldType(pa.binary(), _parsed(_bytes, "bytes in base64")),
    "date": FieldType(pa.date32(), _parsed(_date, "a date like 2026-01-31")),
    "timestamp": FieldType(pa.timestamp("us", tz="UTC"), _parsed(_timestamp, "a time like 2026-01-31T12:00:00Z")),
    "timestamp_ntz": FieldType(pa.timestamp("us"), _timestamp_ntz),
}
