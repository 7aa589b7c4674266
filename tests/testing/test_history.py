"""A history is written as the lines that its documentation shows."""

from __future__ import annotations

from kbroker.testing.history import Event, Function, Type, to_line
from tests.testing.perfect_run import perfect_history
from tests.testing.recorded_history import event_of


def test_a_line_has_the_documented_fields() -> None:
    event = Event(at_ms=5, process="p1", function=Function.SEND, type=Type.OK, key="t-0", value="v", offset=7)
    assert to_line(event) == '{"t":5,"proc":"p1","f":"send","key":"t-0","value":"v","offset":7,"type":"ok"}'


def test_an_event_survives_a_round_trip() -> None:
    for event in perfect_history(1):
        assert event_of(to_line(event)) == event


def test_a_line_break_in_a_value_is_escaped() -> None:
    event = Event(at_ms=5, process="p1", function=Function.SEND, type=Type.FAIL, value="a\nb", error="c\nd")
    assert "\n" not in to_line(event)
