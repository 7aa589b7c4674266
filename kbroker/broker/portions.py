"""Long requests in portions, between which the event loop has a turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, Final, TypeVar

Topic = TypeVar("Topic")

PORTION: Final = 1_000


def in_portions(topics: Iterable[Topic], field: str, *, size: int = PORTION) -> Iterator[list[Topic]]:
    """The same topics in lists, each with at most `size` elements in the arrays `field` of its topics together.

    A topic with more stands in several lists. An empty array counts as one element.
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
