"""Parses offsets, partitions, points in time and durations on the command line.

    beginning | end | <n> | -<n> | s@<ms> | e@<ms>
        an offset in kcat's notation: -<n> counts from the end, s@ starts at the first record at or after a timestamp,
        e@ stops there
    -1 ... -5 | latest | earliest | max-timestamp | earliest-local | latest-tiered | <ms>
        the timestamp of a ListOffsets request, as in kafka-get-offsets
    topic | topic:0,1,2
        partitions of a topic; all without a list
    2026-01-31T13:45:00.000[Z|+01:00]
        a point in time; UTC without a time zone
    P1DT2H3M4.5S
        a duration, in the notation of java.time.Duration
    key=value
        a setting

All functions raise argparse.ArgumentTypeError with a reason, so that they can be the `type` of a flag.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal, NamedTuple

MAX_INT64: Final = 2**63 - 1
MAX_INT32: Final = 2**31 - 1

Anchor = Literal["beginning", "end", "offset", "tail", "timestamp"]


class Position(NamedTuple):
    """A position in a partition; `number` is an offset, a number of records before the end, or a timestamp in ms."""

    anchor: Anchor
    number: int = 0


class Range(NamedTuple):
    """Where to start and to stop; `end_ms` is a timestamp, or None for no end."""

    start: Position
    end_ms: int | None = None


class TopicPartitions(NamedTuple):
    """A topic's partitions; all if `partitions` is None."""

    topic: str
    partitions: tuple[int, ...] | None


SPECS: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
}
_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:[.,]\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def integer(text: str, *, at_least: int, at_most: int = MAX_INT64, what: str = "a whole number") -> int:
    """An integer in a range."""
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {what}") from None
    if not at_least <= number <= at_most:
        raise ArgumentTypeError(f"{text} is not {what} between {at_least} and {at_most}")
    return number


count = partial(integer, at_least=1)
natural = partial(integer, at_least=0)
any_integer = partial(integer, at_least=-MAX_INT64)
partition = partial(integer, at_least=0, at_most=MAX_INT32, what="a partition")
milliseconds = partial(integer, at_least=1, what="a number of milliseconds")


def pair(text: str) -> tuple[str, str]:
    """Key and value of `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        from kbroker.config.values import key_of  # noqa: PLC0415  (--help must not import the settings)

        raise ArgumentTypeError(f"{key_of(text)!r} is not of the form key=value")
    return key.strip(), value.strip()


def position(text: str) -> Position:
    """A start position."""
    if text in ("beginning", "earliest"):
        return Position("beginning")
    if text in ("end", "latest"):
        return Position("end")
    if text.startswith("s@"):
        return Position("timestamp", integer(text[2:], at_least=0, what="a timestamp in milliseconds"))
    try:
        number = any_integer(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is not an offset; use beginning, end, <n>, -<n> or s@<ms>, and e@<ms> for where to stop"
        ) from None
    return Position("tail", -number) if text.startswith("-") else Position("offset", number)


def offset_range(words: list[str] | None, *, default: Position) -> Range:
    """The range of a repeatable `--offset`, which has at most one start and one `e@`."""
    starts: list[Position] = []
    ends: list[int] = []
    for word in words or []:
        if word.startswith("e@"):
            ends.append(integer(word[2:], at_least=0, what="a timestamp in milliseconds"))
        else:
            starts.append(position(word))
    if len(starts) > 1 or len(ends) > 1:
        raise ArgumentTypeError("more than one offset to start at, or to stop at")
    return Range(starts[0] if starts else default, ends[0] if ends else None)


def time_spec(text: str) -> int:
    """The timestamp of a ListOffsets request: in ms, or one of the special negative values."""
    if text in SPECS:
        return SPECS[text]
    what = f"a timestamp in milliseconds or one of {', '.join(SPECS)}"
    return integer(text, at_least=min(SPECS.values()), what=what)


def topic_partitions(text: str) -> TopicPartitions:
    """A topic with or without a list of partitions. A topic name cannot contain a colon."""
    topic, colon, listed = text.partition(":")
    if not _TOPIC.fullmatch(topic):
        raise ArgumentTypeError(f"{topic!r} is not a valid topic name")
    if not colon:
        return TopicPartitions(topic, None)
    return TopicPartitions(topic, tuple(sorted({partition(word) for word in listed.split(",")})))


def point_in_time(text: str) -> int:
    """A date and time, as a timestamp in ms."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or "T" not in text.upper():
        raise ArgumentTypeError(f"{text!r} is not of the form YYYY-MM-DDTHH:mm:SS.sss")
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def moment(text: str) -> int:
    """A date and time, or a timestamp in ms, as a timestamp in ms."""
    return integer(text, at_least=0) if text.isdecimal() else point_in_time(text)


def partition_offset(text: str) -> tuple[int | None, int]:
    """An offset, with or without the partition that it is of."""
    index, colon, offset = text.rpartition(":")
    return partition(index) if colon else None, integer(offset, at_least=0, what="an offset")


def duration(text: str) -> int:
    """A duration in ms; may be negative, as in Java."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ArgumentTypeError(f"{text!r} is not of the form PnDTnHnMnS")
    sign, days, hours, minutes, seconds = match.groups()
    try:
        span = timedelta(
            days=int(days or 0),
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            microseconds=round(float((seconds or "0").replace(",", ".")) * 1_000_000),
        )
    except OverflowError:
        raise ArgumentTypeError(f"{text} is too long") from None
    found = span // timedelta(milliseconds=1)
    return -found if sign == "-" else found
