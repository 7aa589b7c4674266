"""Splits long requests into portions, so that the event loop can run other tasks between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, Final, TypeVar

Topic = TypeVar("Topic")

PORTION: Final = 1_000


def in_portions(topics: Iterable[Topic], field: str, *, size: int = PORTION) -> Iterator[list[Topic]]:
    """The same topics in lists. The arrays `field` of the topics of one list have at most `size` elements in total.

    A topic with more elements is split over several lists. An empty array counts as one element.
    """
    portion: list[Topic] = []
    room = size
    for topic in topics:
        rest: list[Any] = getattr(topic, field)
        while len(rest) > room:
            part = copy(topic)
            setattr(part, field, rest[:room])
            yield [*portion, part]
            portion, rest, room = [], rest[room:], size
        last = topic
        if rest is not getattr(topic, field):
            last = copy(topic)
            setattr(last, field, rest)
        portion.append(last)
        room -= max(1, len(rest))
        if room <= 0:
            yield portion
            portion, room = [], size
    if portion:
        yield portion
