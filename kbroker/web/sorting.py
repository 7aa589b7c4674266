"""Sorts rows in slices, and returns one page of them.

Theory of operation: sorting ten thousand rows at once takes longer than the event loop may be busy. `Sorted` sorts runs
of a few hundred keys as they are added, and merges the runs only as far as the page that is asked for. A generator here
yields b"" after each step of well below a millisecond: the HTTP server then lets other tasks run.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from heapq import merge
from typing import Any, Final, NamedTuple, TypeVar

RUN: Final = 256
STEP: Final = 64
"""Rows that a step handles."""

Result = TypeVar("Result")
Steps = Generator[bytes, None, Result]
"""Yields b"" after each step, and returns the result."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a table is sorted, and which page is shown, the first one being 0: `name`, `-size` or `size.3`.

    A minus sign reverses the order: numbers begin with the largest one without it, names with "a".
    """

    by: str
    is_reversed: bool = False
    page: int = 0

    @classmethod
    def parse(cls, text: str, allowed: tuple[str, ...]) -> Order:
        """Errors: ValueError"""
        by, _, page = text.partition(".")
        name = by.removeprefix("-")
        if name not in allowed:
            raise ValueError(f"cannot sort by {name!r}, only by {', '.join(allowed)}")
        if page and not (page.isascii() and page.isdigit() and len(page) < 8):
            raise ValueError(f"{page!r} is no page number")
        return cls(name, by != name, int(page or 0))


class Page(NamedTuple):
    """One page of a table: its keys, its number, and the number of keys in all pages."""

    keys: list[Any]
    number: int
    total: int


class Sorted:
    """Sorts keys: tuples of which no two are equal."""

    def __init__(self, order: Order, page_size: int) -> None:
        self._order, self._size = order, page_size
        self._runs: list[list[Any]] = []
        self._run: list[Any] = []

    def add(self, key: Any) -> None:
        """Add a key."""
        self._run.append(key)
        if len(self._run) == RUN:
            self._end_run()

    def _end_run(self) -> None:
        self._run.sort(reverse=self._order.is_reversed)
        self._runs.append(self._run)
        self._run = []

    def page(self) -> Steps[Page]:
        """The page that is asked for, or the last one if there are fewer."""
        self._end_run()
        count = sum(map(len, self._runs))
        number = min(self._order.page, max(0, count - 1) // self._size)
        first, found = number * self._size, []
        yield b""
        for at, key in enumerate(merge(*self._runs, reverse=self._order.is_reversed)):
            if at % STEP == 0:
                yield b""
            if at >= first + self._size:
                break
            if at >= first:
                found.append(key)
        return Page(found, number, count)
