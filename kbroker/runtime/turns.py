"""Turns: long work on the event loop regularly lets other tasks run.

Theory of operation: one event loop serves every client, so a request that loops over thousands of items must yield. It
calls `due()` at every step and awaits `next()` if that is true:

    for name in names:
        if turns.due():
            await turns.next()
        ...

A slice begins with a turn, or with a request (`begin`) if no long work ran just before it, so a small request never
waits for a turn. All long work of a process shares one queue. In each pass of the event loop only the first task of the
queue works, for about SLICE_NS, and then moves to the end of the queue. So a small request waits for one slice, however
many long requests are in progress.

The state of the broker may change between two turns. A caller works on an immutable image or a copy, or accepts the
change; it never takes a turn between a decision and its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

SLICE_NS: Final = 2_000_000
MAX_STEPS: Final = 200
"""A turn ends after this many steps even if no time has passed, as on a simulated clock."""


class Turns:
    """The turns of one event loop."""

    __slots__ = ("_began_ns", "_is_taken", "_line", "_now_ns", "_seen_ns", "_steps")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._line = trio.lowlevel.ParkingLot()
        self._is_taken = False  # a task owns the turn of the next pass
        self._began_ns = self._seen_ns = now_ns()
        self._steps = 0

    def begin(self, now_ns: int) -> None:
        """Note the start of a request."""
        if now_ns - self._seen_ns >= SLICE_NS:
            self._began_ns, self._steps = now_ns, 0
        self._seen_ns = now_ns

    def due(self, steps: int = 1) -> bool:
        """Count the next steps; return whether the caller must await `next` before it takes them."""
        self._steps += steps
        now_ns = self._seen_ns = self._now_ns()
        return self._steps >= MAX_STEPS or now_ns - self._began_ns >= SLICE_NS

    async def next(self) -> None:
        """Wait for the next turn. If cancelled, the turn goes to the next task in the queue."""
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
        self._steps = 0
        self._began_ns = self._seen_ns = self._now_ns()

    def _hand_on(self) -> None:
        if self._line:
            self._line.unpark()  # it runs in the next pass of the event loop
        else:
            self._is_taken = False
