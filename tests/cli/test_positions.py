"""Offsets, partitions and times on the command line: accepted and refused notations."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli import _positions as parse
from kbroker.cli._positions import Position, Range, TopicPartitions

NOWHERE = Position("beginning")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("beginning", Position("beginning")),
        ("earliest", Position("beginning")),
        ("end", Position("end")),
        ("latest", Position("end")),
        ("0", Position("offset", 0)),
        ("9223372036854775807", Position("offset", 2**63 - 1)),
        ("-10", Position("tail", 10)),
        ("-0", Position("tail", 0)),
        ("s@0", Position("timestamp", 0)),
        ("s@1700000000000", Position("timestamp", 1_700_000_000_000)),
    ],
)
def test_offsets_have_kcats_notation(text: str, found: Position) -> None:
    assert parse.position(text) == found


def test_a_range_has_a_start_and_an_end_timestamp() -> None:
    assert parse.offset_range(["s@5", "e@9"], default=NOWHERE) == Range(Position("timestamp", 5), 9)
    assert parse.offset_range(["e@9"], default=NOWHERE) == Range(NOWHERE, 9)
    assert parse.offset_range(None, default=NOWHERE) == Range(NOWHERE)


@pytest.mark.parametrize("words", [["1", "2"], ["e@1", "e@2"], ["e@"], ["e@-1"], ["e@x"], ["stored"]])
def test_an_invalid_range_is_refused(words: list[str]) -> None:
    with pytest.raises(ArgumentTypeError):
        parse.offset_range(words, default=NOWHERE)


@pytest.mark.parametrize(
    ("text", "found"), [("-1", -1), ("-5", -5), ("latest", -1), ("earliest-local", -4), ("0", 0), ("1700", 1700)]
)
def test_times_have_the_notation_of_kafka_get_offsets(text: str, found: int) -> None:
    assert parse.time_spec(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("orders", TopicPartitions("orders", None)), ("a.b_c-d:2,0,2", TopicPartitions("a.b_c-d", (0, 2)))],
)
def test_partitions_are_listed_after_a_topic(text: str, found: TopicPartitions) -> None:
    assert parse.topic_partitions(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:01.500", 1_500),
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_a_point_in_time_is_utc_without_a_zone(text: str, found: int) -> None:
    assert parse.point_in_time(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PT0S", 0),
        ("P1D", 86_400_000),
        ("PT15M", 900_000),
        ("P2DT3H4M5.678S", 183_845_678),
        ("pt1h", 3_600_000),
        ("-PT1S", -1_000),
        ("PT-1S", -1_000),
        ("+P1DT-1H", 82_800_000),
        ("PT0,5S", 500),
    ],
)
def test_durations_have_javas_notation(text: str, found: int) -> None:
    assert parse.duration(text) == found


@pytest.mark.parametrize(
    ("reader", "texts"),
    [
        (parse.position, ["", "first", "1.5", "s@", "s@-1", "s@x", "e@5", "9223372036854775808", "--1"]),
        (parse.time_spec, ["", "-6", "newest", "1.5", "9223372036854775808"]),
        (parse.topic_partitions, ["", ":0", "a:", "a:x", "a:-1", "a:0,", "a b", "a/b", "a:2147483648", "x" * 250]),
        (parse.point_in_time, ["", "yesterday", "2026-01-31", "2026-13-01T00:00:00", "1700000000000"]),
        (parse.duration, ["", "P", "PT", "1D", "P1H", "P1DT", "PT1D", "P1M", "PT1.5H", "P999999999999D"]),
        (parse.partition, ["", "-1", "a", "2147483648"]),
        (parse.count, ["0", "-1", "many"]),
        (parse.milliseconds, ["0", "1s"]),
    ],
)
def test_invalid_texts_are_refused_with_a_reason(reader: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ArgumentTypeError, match=r".{5}"):
            reader(text)


READERS = [parse.position, parse.time_spec, parse.topic_partitions, parse.point_in_time, parse.duration]


@pytest.mark.parametrize("reader", READERS)
@given(text=st.one_of(st.text(max_size=30), st.from_regex(r"[-+PTDHMS0-9.,:@se]{1,20}", fullmatch=True)))
def test_any_text_is_accepted_or_refused(reader: Callable[[str], object], text: str) -> None:
    with suppress(ArgumentTypeError):
        reader(text)
