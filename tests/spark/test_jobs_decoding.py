"""Values become columns by a schema, or get a reason that names the field."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.decoding import Decoder, Decoding


def field(name: str, kind: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def decoding(*fields: dict[str, Any], format: str = "json", **more: Any) -> Decoding:
    return Decoding(format, {"type": "struct", "fields": list(fields)}, **more)


def of_one(kind: Any, *, format: str = "json", nullable: bool = True, **more: Any) -> Decoding:
    """Values with one field, named a."""
    return decoding(field("a", kind, nullable=nullable), format=format, **more)


def rows(made: Decoding, *values: bytes | None) -> tuple[list[tuple[Any, ...]], list[str | None]]:
    found = Decoder(made).decode(values)
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True)), found.reasons


def reason(made: Decoding, value: bytes | None) -> str:
    found, (said,) = rows(made, value)
    assert said is not None
    assert all(cell is None for cell in found[0]), "a bad record has no fields"
    return said


ARRAY = {"type": "array", "elementType": "integer", "containsNull": False}
MAP = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
INNER = {"type": "struct", "fields": [field("x", "long", nullable=False)]}


def test_each_type_of_a_schema_is_read_from_json() -> None:
    made = decoding(
        field("s", "string"), field("i", "integer"), field("f", "double"), field("b", "boolean"), field("d", "date"),
        field("t", "timestamp"), field("n", "timestamp_ntz"), field("m", "decimal(10,2)"), field("y", "binary"),
        field("a", ARRAY), field("p", MAP), field("o", INNER), field("z", "long"),
    )  # fmt: skip
    value = (
        '{"s": "ü", "i": 7, "f": 1, "b": true, "d": "2026-01-31", "t": "2026-01-31T12:00:00+02:00", '
        '"n": "2026-01-31T12:00:00", "m": 12.10, "y": "AP8=", "a": [1, 2], "p": {"k": 0.5, "l": null}, "o": {"x": 3}}'
    )
    found, reasons = rows(made, value.encode())
    assert reasons == [None]
    assert found == [
        (
            "ü", 7, 1.0, True, date(2026, 1, 31), datetime(2026, 1, 31, 10, tzinfo=UTC),
            datetime.fromisoformat("2026-01-31T12:00:00"),
                       Decimal("12.10"), b"\x00\xff", [1, 2], [("k", 0.5), ("l", None)], {"x": 3}, None,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("integer", b'{"a": "12"}', 'field a is the string "12" instead of an integer of 32 bits'),
        ("integer", b'{"a": 1.5}', "field a is the number 1.5 instead of an integer of 32 bits"),
        ("integer", b'{"a": 2147483648}', "field a is the number 2147483648 instead of an integer of 32 bits"),
        ("integer", b'{"a": true}', "field a is the boolean true instead of an integer of 32 bits"),
        ("string", b'{"a": 12}', "field a is the number 12 instead of a string"),
        ("boolean", b'{"a": 1}', "field a is the number 1 instead of a boolean"),
        ("date", b'{"a": "31.1.2026"}', 'field a is the string "31.1.2026" instead of a date like 2026-01-31'),
        ("decimal(4,1)", b'{"a": 1234.5}', "field a is the number 1234.5 instead of a decimal of 4 digits"),
        (ARRAY, b'{"a": [1, "x"]}', 'field a[1] is the string "x" instead of an integer of 32 bits'),
        (ARRAY, b'{"a": [1, null]}', "field a[1] is null, which the schema does not allow"),
        (INNER, b'{"a": {"x": "y"}}', 'field a.x is the string "y" instead of an integer of 64 bits'),
        (INNER, b'{"a": {}}', "field a.x is missing, which the schema does not allow"),
        ("integer", b'{"a": 1', "the value is not JSON: Expecting ',' delimiter at character 7"),
        ("integer", b'{"a": 1} x', "the value is not JSON: Extra data at character 9"),
        ("integer", b'{"a": NaN}', "the value is not JSON: NaN is not a number"),
        ("integer", b"\xff", "the value is not UTF-8 at byte 0"),
        ("integer", b"[1]", "the value is an array instead of an object"),
        ("integer", b'{"A": 1}', "the value has none of the schema's fields, it has A"),
        ("string", b'{"a": "\\ud800"}', "field a has half of a surrogate pair"),
        ("double", b'{"a": 1e999}', "field a is the number 1E+999 instead of a number of 64 bits"),
        ("double", b'{"a": ' + b"9" * 400 + b"}", f"field a is the number {'9' * 40}… instead of a number of 64 bits"),
        ("float", b'{"a": 1e39}', "field a is the number 1e+39 instead of a number of 32 bits"),
        ("decimal(4,1)", b'{"a": "1.5"}', 'field a is the string "1.5" instead of a decimal of 4 digits'),
        ("decimal(4,1)", b'{"a": 1e400000000}', "field a is the number 1E+400000000 instead of a decimal of 4 digits"),
        ("decimal(4,1)", b'{"a": 1e-400000000}', "field a is the number 1E-400000000 instead of a decimal of 4 digits"),
        ("decimal(4,1)", b'{"a": 1e9999999999999999999}', "the value has the number 1e9999999999999999999, which is"),
        ("decimal(38,0)", b'{"a": 1' + b"0" * 38 + b"}", "field a is the number 1000"),
        ("integer", b"[" * 100_000, "the value is nested too deep"),
        ("long", b'{"a": ' + b"9" * 5000 + b"}", "the value cannot be read: "),
    ],
)
def test_a_wrong_value_is_reported_with_its_field(kind: Any, value: bytes, said: str) -> None:
    assert reason(of_one(kind), value).startswith(said)


def test_a_decimal_may_have_all_38_digits() -> None:
    text = "-" + "9" * 28 + "." + "1234567890"
    assert rows(of_one("decimal(38,10)"), f'{{"a": {text}}}'.encode()) == ([(Decimal(text),)], [None])
    assert rows(of_one("decimal(38,0)"), b'{"a": ' + b"9" * 38 + b"}") == ([(Decimal("9" * 38),)], [None])
    assert rows(of_one("decimal(38,10)", format="csv"), text.encode()) == ([(Decimal(text),)], [None])


def test_unknown_fields_are_ignored_or_refused() -> None:
    value = b'{"a": 1, "b": 2}'
    assert rows(of_one("long"), value) == ([(1,)], [None])
    assert reason(of_one("long", allows_unknown_fields=False), value) == "the schema has no field b"


def test_a_tombstone_gives_nulls_unless_a_field_is_required() -> None:
    assert rows(of_one("long"), None) == ([(None,)], [None])
    assert reason(of_one("long", nullable=False), None) == "the value is null, but the schema requires a"


def test_bad_records_do_not_shift_other_rows() -> None:
    found, reasons = rows(of_one("long"), b'{"a": 1}', b"?", b'{"a": 3}')
    assert found == [(1,), (None,), (3,)]
    assert [said is None for said in reasons] == [True, False, True]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1,x,2.5,TRUE", (1, "x", 2.5, True)),
        (b'1,"a ""b"", c",,', (1, 'a "b", c', None, None)),
        (b"1,x", "the value has 2 fields of CSV, the schema 4"),
        (b"1,x,2,true\n2,y,3,true", "the value has 2 lines of CSV instead of one"),
        (b"", "the value has 0 lines of CSV instead of one"),
        (b"one,x,2,true", 'field n is the string "one" instead of an integer of 64 bits'),
        (b"1,x,2,maybe", 'field b is the string "maybe" instead of a boolean'),
        (b",x,2,true", "field n is empty, which the schema does not allow"),
        (b'1,"x,2,true', "the value is not CSV: unexpected end of data"),
    ],
)
def test_csv_fields_follow_the_order_of_the_schema(value: bytes, expected: tuple[Any, ...] | str) -> None:
    made = decoding(
        field("n", "long", nullable=False), field("s", "string"), field("f", "double"), field("b", "boolean"),
        format="csv",
    )  # fmt: skip
    if isinstance(expected, str):
        assert reason(made, value) == expected
    else:
        assert rows(made, value) == ([expected], [None])


@pytest.mark.parametrize("kind", ["long", "double", "decimal(10,2)"])
@pytest.mark.parametrize("cell", ["1_000", " 1", "1 ", "\u0661", "0x1", "1e", "--1"])
def test_csv_refuses_numbers_that_only_python_accepts(kind: str, cell: str) -> None:
    assert reason(of_one(kind, format="csv"), cell.encode()).startswith(f'field a is the string "{cell}" instead of a')


def test_csv_numbers_are_parsed_by_field_type() -> None:
    cells = [b"+5", b"-.5", b"5.", b"1e3", b"1e999"]
    found = {kind: rows(of_one(kind, format="csv"), *cells)[0] for kind in ("long", "double", "decimal(10,2)")}
    assert found["long"] == [(5,), (None,), (None,), (None,), (None,)]
    assert found["double"] == [(5.0,), (-0.5,), (5.0,), (1000.0,), (None,)]
    assert found["decimal(10,2)"] == [(Decimal(5),), (Decimal("-0.5"),), (Decimal(5),), (Decimal(1000),), (None,)]
    assert rows(of_one("double", format="csv"), b"-Infinity") == ([(-inf,)], [None])


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\r", "\n"])
def test_an_invalid_csv_delimiter_is_refused(delimiter: str) -> None:
    with pytest.raises(InvalidOption, match="the delimiter of CSV is not one character"):
        Decoder(of_one("long", format="csv", csv_delimiter=delimiter))


TWINS = {"type": "struct", "fields": [field("x", "long"), field("X", "long")]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "the schema has no field"),
        ([field("a", TWINS)], "the schema's field 'X' has the name of another column"),
        ([field("a", "interval day to second")], "the type interval day to second"),
        ([field("a", {**MAP, "keyType": "integer"})], "a map whose keys are not strings"),
        ([field("a", "long"), field("A", "long")], "the schema's field 'A' has the name of another column"),
    ],
)
def test_an_invalid_schema_is_refused(fields: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InvalidOption, match="Remedy: ") as error:
        Decoder(decoding(*fields))
    assert said in str(error.value)


@given(st.binary(max_size=40), st.sampled_from(["json", "csv"]))
def test_any_bytes_give_a_row_or_a_reason(value: bytes, format: str) -> None:
    made = decoding(field("a", "integer"), field("b", "timestamp"), format=format)
    found, (said,) = rows(made, value)
    assert len(found) == 1
    assert said is None or found == [(None, None)]


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.one_of(st.none(), st.booleans(), st.integers(), st.text()), min_size=1
    )
)
def test_valid_json_is_decoded_exactly(value: dict[str, Any]) -> None:
    made = decoding(field("a", "long"), field("b", "string"))
    found, (said,) = rows(made, json.dumps(value).encode())
    fits = (
        (value.get("a") is None or (type(value["a"]) is int and -(1 << 63) <= value["a"] < 1 << 63))
        and (value.get("b") is None or isinstance(value["b"], str))
    )  # fmt: skip
    assert (said is None) == fits
    if fits:
        assert found == [(value.get("a"), value.get("b"))]
