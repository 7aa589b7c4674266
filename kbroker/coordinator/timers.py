"""The timers of one shard, in a heap.

Every heartbeat moves a session's deadline, nearly always to a later time. So moving a timer to a later time only
updates its deadline; its heap entry stays and is requeued when the old time comes. `next_deadline_ms` is therefore a
lower bound of the true next deadline, and a loop may wake too early and find nothing due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

_FEW: Final = 64


def nothing() -> None:
    """The action of a timer whose owner is not complete yet or is gone."""


@dataclass(eq=False, slots=True)
class Timer:
    """A timer that is due at deadline_ms; None while it is not scheduled."""

    action: Callable[[], None] = nothing
    deadline_ms: int | None = None
    queued_ms: int | None = None


class Timers:
    """All timers of a shard. Units: monotonic milliseconds."""

    __slots__ = ("_cancelled", "_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, timer: Timer, deadline_ms: int) -> None:
        """Schedule the timer, or move it if it is already scheduled."""
        timer.deadline_ms = deadline_ms
        if timer.queued_ms is None:
            self._queue(timer, deadline_ms)
        elif deadline_ms < timer.queued_ms:
            self._queue(timer, deadline_ms)
            self._note_dead_entry()

    def cancel(self, timer: Timer) -> None:
        """Cancel the timer. Its heap entry is removed when its time comes, or when most entries are cancelled."""
        if timer.deadline_ms is None:
            return
        timer.deadline_ms = None
        self._note_dead_entry()

    def _note_dead_entry(self) -> None:
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled * 2 > len(self._heap):
            self._forget_cancelled()

    def next_deadline_ms(self) -> int | None:
        """When to call `due` next; None if no timer is scheduled."""
        while self._heap and self._heap[0][2].deadline_ms is None:
            self._drop_first()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Timer | None:
        """Remove and return the next timer that is due at now_ms; None if there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            timer = self._drop_first()
            if timer is None or timer.deadline_ms is None:
                continue
            if timer.deadline_ms <= now_ms:
                timer.deadline_ms = None
                return timer
            self._queue(timer, timer.deadline_ms)
        return None

    def _drop_first(self) -> Timer | None:
        """Remove the first entry. Returns its timer, or None if a newer entry of the timer exists."""
        queued_ms, _, timer = heappop(self._heap)
        if timer.queued_ms != queued_ms:
            return None
        timer.queued_ms = None
        return timer

    def _queue(self, timer: Timer, deadline_ms: int) -> None:
        timer.queued_ms = deadline_ms
        self._count += 1
        heappush(self._heap, (deadline_ms, self._count, timer))

    def _forget_cancelled(self) -> None:
        kept: list[tuple[int, int, Timer]] = []
        for entry in self._heap:
            timer = entry[2]
            if timer.queued_ms != entry[0]:
                continue
            if timer.deadline_ms is None:
                timer.queued_ms = None
            else:
                kept.append(entry)
        heapify(kept)
        self._heap, self._cancelled = kept, 0
