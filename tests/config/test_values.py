"""Values are parsed and written as by Kafka's ConfigDef."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.values import InvalidValue, Kind, Secret, Value, parse, to_text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.INT, " 5 ", 5),
        (Kind.INT, "+5", 5),
        (Kind.INT, "-2147483648", -(1 << 31)),
        (Kind.SHORT, "32767", 32767),
        (Kind.LONG, "9223372036854775807", (1 << 63) - 1),
        (Kind.BOOLEAN, " TRUE", True),
        (Kind.BOOLEAN, "False", False),
        (Kind.DOUBLE, "1e3", 1000.0),
        (Kind.DOUBLE, ".5f", 0.5),
        (Kind.DOUBLE, "-Infinity", -math.inf),
        (Kind.STRING, "  a b ", "a b"),
        (Kind.LIST, " delete , compact ", ("delete", "compact")),
        (Kind.LIST, "compact,compact", ("compact",)),
        (Kind.LIST, "", ()),
    ],
)
def test_a_text_stands_for_a_value(kind: Kind, text: str, value: Value) -> None:
    assert parse("key", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.INT, ""),
        (Kind.INT, "2147483648"),
        (Kind.SHORT, "32768"),
        (Kind.LONG, "1e3"),
        (Kind.LONG, "0x10"),
        (Kind.LONG, "5_000"),
        (Kind.LONG, "٣"),
        (Kind.LONG, "9" * 5000),
        (Kind.DOUBLE, "x"),
        (Kind.DOUBLE, "nan"),
        (Kind.DOUBLE, "1_0"),
    ],
)
def test_a_number_that_java_refuses_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse("some.key", kind, text)
    assert str(caught.value) == f"Invalid value {text} for configuration some.key: Not a number of type {kind.name}"


def test_only_true_and_false_are_booleans() -> None:
    with pytest.raises(InvalidValue, match="Expected value to be either true or false"):
        parse("k", Kind.BOOLEAN, "yes")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (1.5e10, "1.5E10"),
        (123456789.0, "1.23456789E8"),
        (0.001, "0.001"),
        (0.0005, "5.0E-4"),
        (1e-5, "1.0E-5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (9999999.0, "9999999.0"),
        (12345678.9, "1.23456789E7"),
        (-2e8, "-2.0E8"),
        (0.0, "0.0"),
        (math.inf, "Infinity"),
    ],
)
def test_a_double_is_written_as_java_writes_it(value: float, text: str) -> None:
    assert to_text(value) == text


@given(st.floats(allow_nan=False))
def test_a_written_double_is_read_back(value: float) -> None:
    text = to_text(value)
    assert text is not None
    assert parse("k", Kind.DOUBLE, text) == value


@given(st.sampled_from(list(Kind)), st.text())
def test_any_text_gives_a_value_or_an_invalid_value(kind: Kind, text: str) -> None:
    try:
        value = parse("k", kind, text)
    except InvalidValue:
        return
    assert isinstance(value, bool | int | float | str | tuple | Secret)
