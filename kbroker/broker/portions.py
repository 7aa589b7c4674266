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
        while True:
            part = copy(topic)
            setattr(part, field, rest[:room])
            portion.append(part)
            taken, rest = max(1, len(rest[:room])), rest[room:]
            room -= taken
            if room <= 0:
                yield portion
                portion, room = [], size
            if not rest:
                break
    if portion:
        yield portion
