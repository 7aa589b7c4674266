"""Decodes the values of records to columns: JSON, CSV or Avro with a schema.

A record whose value cannot be decoded does not stop the job: it is returned with a reason, for a separate table. The
reason is the parser's message, or the field with its wrong value. A null value, a tombstone, becomes a row of nulls
unless the schema has required fields.

Source  RFC 8259, RFC 4180, the specification of Avro 1.12; Confluent's wire format (a zero byte, four bytes schema id)
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.field_types import (
    Converter,
    Schema,
    WrongValue,
    exact_number,
    field_type,
    number,
    struct_type,
)

FORMATS: Final = ("json", "csv", "avro")
CONFLUENT_HEADER_SIZE: Final = 5
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _float(cell: str) -> float | Decimal:
    return number(cell) if _NUMBER.fullmatch(cell) else float(cell)


_INTEGER_CELL: Final = re.compile(r"[+-]?[0-9]+"), int
_FLOAT_CELL: Final = re.compile(rf"{_NUMBER.pattern}|[+-]?(?i:nan|inf|infinity)"), _float
_CELLS: Final[Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]]] = {
    "boolean": (re.compile("true|false", re.IGNORECASE), lambda cell: cell.lower() == "true"),
    "decimal": (_NUMBER, exact_number),
    **dict.fromkeys(("float", "double"), _FLOAT_CELL),
    **dict.fromkeys(("byte", "short", "integer", "long"), _INTEGER_CELL),
}
"""Which cells of CSV are values of a type, and how to read them. Python's own functions also accept "1_000", digits of
other scripts, and spaces.
"""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The format of values, and the columns that they become.

    Shape  schema is that of the columns (see field_types); avro_schema is the writer's if the format is avro
    Note   unknown fields of JSON are ignored unless `allows_unknown_fields` is False; if schema_id is given, Confluent
           headers must have it
    """

    format: str
    schema: Schema
    avro_schema: Any = None
    has_confluent_header: bool = False
    schema_id: int | None = None
    allows_unknown_fields: bool = True
    csv_delimiter: str = ","
    csv_null: str = ""


class Decoded(NamedTuple):
    """One column for each field; for each row the reason why it could not be decoded, or None."""

    columns: list[pa.Array]
    reasons: list[str | None]


class Decoder:
    """Decodes many values at once. Errors: InvalidOption from the constructor for an unsupported schema."""

    def __init__(self, decoding: Decoding) -> None:
        fields = decoding.schema["fields"]
        if not fields:
            raise InvalidOption("the schema has no field", remedy="name at least one")
        self.names: list[str] = [each["name"] for each in fields]
        self._types = [each.type for each in struct_type(decoding.schema, allows_unknown=True).arrow]
        self._parse = _PARSERS[decoding.format](decoding)
        required = [each["name"] for each in fields if not each.get("nullable", True)]
        self._tombstone = f"the value is null, but the schema requires {', '.join(required)}" if required else None

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode the fields of each value."""
        rows: list[tuple[Any, ...]] = []
        reasons: list[str | None] = []
        nothing = (None,) * len(self.names)
        for value in values:
            row, reason = nothing, None
            if value is None:
                reason = self._tombstone
            else:
                try:
                    row = tuple(self._parse(value).values())
                except WrongValue as error:
                    reason = str(error)
            rows.append(row)
            reasons.append(reason)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.names)
        return Decoded([pa.array(column, kind) for column, kind in zip(columns, self._types, strict=True)], reasons)


Parse = Callable[[bytes], dict[str, Any]]


def _json(decoding: Decoding) -> Parse:
    convert = struct_type(decoding.schema, allows_unknown=decoding.allows_unknown_fields).convert
    names = {each["name"] for each in decoding.schema["fields"]}
    # A decimal must not be parsed as a float first.
    parse_float = exact_number if "decimal" in json.dumps(decoding.schema) else number
    decoder = json.JSONDecoder(parse_float=parse_float, parse_constant=_no_constant)

    def parse(value: bytes) -> dict[str, Any]:
        try:
            found = decoder.decode(value.decode())
        except UnicodeDecodeError as error:
            raise WrongValue(f"the value is not UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise WrongValue(f"the value is not JSON: {error.msg} at character {error.pos}") from None
        except RecursionError:
            raise WrongValue("the value is nested too deeply") from None
        except WrongValue:
            raise
        except ValueError as error:  # a number of thousands of digits
            raise WrongValue(f"the value cannot be read: {error}") from None
        converted: dict[str, Any] = convert(found, "")
        if not names.intersection(found):
            raise WrongValue(f"the value has none of the schema's fields, it has {_some(found)}")
        return converted

    return parse


def _no_constant(text: str) -> NoReturn:
    raise WrongValue(f"the value is not JSON: {text} is not a number")


def _some(found: Mapping[str, Any]) -> str:
    names = [str(name) for name in found]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "no fields"


def _csv(decoding: Decoding) -> Parse:
    fields = decoding.schema["fields"]
    converters = [_from_text(each["name"], each["type"]) for each in fields]
    if len(decoding.csv_delimiter) != 1 or decoding.csv_delimiter in '"\r\n':
        what = "the delimiter of CSV is not one character, or is a quote or a line break"
        raise InvalidOption(what, remedy="use another one, for example ';'")

    def parse(value: bytes) -> dict[str, Any]:
        try:
            text = io.StringIO(value.decode(), newline="")
            rows = list(csv.reader(text, delimiter=decoding.csv_delimiter, strict=True))
        except UnicodeDecodeError as error:
            raise WrongValue(f"the value is not UTF-8 at byte {error.start}") from None
        except csv.Error as error:
            raise WrongValue(f"the value is not CSV: {error}") from None
        if len(rows) != 1:
            raise WrongValue(f"the value has {len(rows)} lines of CSV instead of one")
        (cells,) = rows
        if len(cells) != len(fields):
            raise WrongValue(f"the value has {len(cells)} fields of CSV, the schema {len(fields)}")
        found: dict[str, Any] = {}
        for each, convert, cell in zip(fields, converters, cells, strict=True):
            name = each["name"]
            if cell != decoding.csv_null:
                found[name] = convert(cell, name)
            elif each.get("nullable", True):
                found[name] = None
            else:
                raise WrongValue(f"field {name} is empty, which the schema does not allow")
        return found

    return parse


def _from_text(name: str, kind: Any) -> Converter:
    """A converter for a cell, which is always text."""
    if not isinstance(kind, str):
        raise InvalidOption(f"field {name} is a {kind['type']}, which CSV does not support", remedy="use a simple type")
    convert = field_type(kind, allows_unknown=True).convert
    if (known := _CELLS.get(kind.partition("(")[0])) is None:
        return convert
    pattern, read = known

    def convert_text(cell: str, path: str) -> Any:
        value: Any = cell  # of which the converter shows the text in an error
        if pattern.fullmatch(cell):
            with suppress(ValueError):  # a number of thousands of digits
                value = read(cell)
        return convert(value, path)

    return convert_text


def _avro(decoding: Decoding) -> Parse:
    import fastavro  # noqa: PLC0415  (only needed for Avro)

    writer = fastavro.parse_schema(decoding.avro_schema)
    convert = struct_type(decoding.schema, allows_unknown=True).convert

    def parse(value: bytes) -> dict[str, Any]:
        start = _behind_header(value, decoding) if decoding.has_confluent_header else 0
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            found = fastavro.schemaless_reader(stream, writer, None)
        except UnicodeDecodeError:
            raise WrongValue("the value is not Avro of this schema: a string is not UTF-8") from None
        except (EOFError, StopIteration):
            raise WrongValue(f"the value is not Avro of this schema: it ends after {len(value)} bytes") from None
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, ArithmeticError) as error:
            raise WrongValue(f"the value is not Avro of this schema: {error or type(error).__name__}") from None
        if left := len(value) - stream.tell():
            raise WrongValue(f"the value is not Avro of this schema: {left} bytes remain after it")
        converted: dict[str, Any] = convert(found, "")
        return converted

    return parse


def _behind_header(value: bytes, decoding: Decoding) -> int:
    if len(value) < CONFLUENT_HEADER_SIZE or value[0] != 0:
        raise WrongValue("the value does not begin with Confluent's header, a zero byte and a schema id")
    schema_id = int.from_bytes(value[1:CONFLUENT_HEADER_SIZE], "big")
    if decoding.schema_id is not None and schema_id != decoding.schema_id:
        raise WrongValue(f"the value was written with the schema {schema_id}, not with {decoding.schema_id}")
    return CONFLUENT_HEADER_SIZE


_PARSERS: Final[Mapping[str, Callable[[Decoding], Parse]]] = {"json": _json, "csv": _csv, "avro": _avro}
