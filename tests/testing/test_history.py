"""Histories survive a round trip through their file, and a damaged file is rejected."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.testing.history import BadHistory, Event, Function, Type, from_line, read_history, to_line, write_event
from tests.testing.perfect_run import perfect_history

EVENTS = st.builds(
    Event,
    at_ms=st.integers(0, 1 << 40),
    process=st.text(max_size=8),
    function=st.sampled_from(Function),
    type=st.sampled_from(Type),
    key=st.text(max_size=8),
    value=st.none() | st.text(max_size=20),
    offset=st.none() | st.integers(-1, (1 << 63) - 1),
    epoch=st.none() | st.integers(0, 1 << 31),
    acks=st.sampled_from([-1, 0, 1]),
    error=st.none() | st.text(max_size=20),
)


@given(EVENTS)
def test_an_event_survives_a_round_trip(event: Event) -> None:
    assert from_line(to_line(event)) == event
    assert "\n" not in to_line(event)


def text_of(events: list[Event]) -> str:
    file = io.StringIO()
    for event in events:
        write_event(file, event)
    return file.getvalue()


def test_a_line_has_the_documented_fields() -> None:
    event = Event(at_ms=5, process="p1", function=Function.SEND, type=Type.OK, key="t-0", value="v", offset=7)
    assert to_line(event) == '{"t":5,"proc":"p1","f":"send","key":"t-0","value":"v","offset":7,"type":"ok"}'


def test_a_history_survives_a_round_trip() -> None:
    events = perfect_history(1)
    assert read_history(text_of(events)) == events


def test_any_cut_of_a_history_is_a_prefix_of_it() -> None:
    events = perfect_history(2)[:6]
    text = text_of(events)
    for size in range(len(text)):
        assert read_history(text[:size]) == events[: text[:size].count("\n") + (text[size] == "\n")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"t":1', "line 2: not JSON"),
        ("", "line 2: empty"),
        ("[]", "line 2: not a JSON object"),
        ('{"t":1,"proc":"p","f":"sned","type":"ok"}', "line 2: 'sned' is not a valid Function"),
        ('{"t":1,"proc":"p","f":"send"}', "line 2: .* missing .* argument: 'type'"),
        ('{"t":"1","proc":"p","f":"send","type":"ok"}', "line 2: field t is '1', not int"),
        ('{"t":true,"proc":"p","f":"send","type":"ok"}', "line 2: field t is True, not int"),
        ('{"t":1,"proc":"p","f":"send","type":"ok","ofset":1}', "line 2: unknown fields"),
    ],
)
def test_a_bad_line_in_the_middle_is_named(bad: str, message: str) -> None:
    good = '{"t":1,"proc":"p","f":"send","type":"ok"}'
    with pytest.raises(BadHistory, match=message.replace("[", r"\[")):
        read_history(f"{good}\n{bad}\n{good}\n")
