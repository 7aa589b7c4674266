"""Turns: how long work on the event loop leaves room for everything else.

Theory of operation: one event loop serves every client, so a request that loops over thousands of things must not do so
in one go. It calls `due()` at every step and awaits `next()` when that is true:

    for name in names:
        if turns.due():
            await turns.next()
        ...

A slice begins with a turn, or with a request (`begin`) if there was no such work just before it, so that a small
request never waits for a turn. All such work of a process stands in one line. In each pass of the event loop only the
first of the line works, for about SLICE_NS, and then goes to the end of the line. So a small request waits for one
slice, however many long ones are under way at the same time.

Between two turns the state of the broker may change. A caller works on an immutable image, on a copy, or accepts the
change; it never takes a turn between a decision and the effect of that decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

SLICE_NS: Final = 2_000_000
MAX_STEPS: Final = 200
"""A turn ends after so many steps even if no time has passed, as on a simulated clock."""


class Turns:
    """The turns of one event loop.

    Shape  taken is how many turns there were
    """

    __slots__ = ("_began_ns", "_is_taken", "_line", "_now_ns", "_seen_ns", "_steps", "taken")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.taken = 0
        self._now_ns = now_ns
        self._line = trio.lowlevel.ParkingLot()
        self._is_taken = False  # somebody has the turn of the next pass
        self._began_ns = self._seen_ns = now_ns()
        self._steps = 0

    def begin(self, now_ns: int) -> None:
        """Note the beginning of a request."""
        if now_ns - self._seen_ns >= SLICE_NS:
            self._began_ns, self._steps = now_ns, 0
        self._seen_ns = now_ns

    def due(self, steps: int = 1) -> bool:
        """Count the steps that come next; whether the caller has to await `next` before it takes them."""
        self._steps += steps
        now_ns = self._seen_ns = self._now_ns()
        return self._steps >= MAX_STEPS or now_ns - self._began_ns >= SLICE_NS

    async def next(self) -> None:
        """Wait for the next turn. When cancelled, the turn goes to the next in line."""
        if self._is_taken:
            await self._line.park()
        else:
            self._is_taken = True
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled:
                self._hand_on()
                raise
        self._hand_on()
        self.taken += 1
        self._steps = 0
        self._began_ns = self._seen_ns = self._now_ns()

    def _hand_on(self) -> None:
        if self._line:
            self._line.unpark()  # it runs in the next pass of the event loop
        else:
            self._is_taken = False
