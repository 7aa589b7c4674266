"""A virtual clock, and waits in virtual time that cost little.

Simulated networks, disks and threads wait very often. A wait of trio has a cancel scope and ends with an exception; a
`Nap` under a `VirtualClock` has neither. Under other clocks a nap is a wait of trio.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import trio
from trio._core import _run as trio_run


class VirtualClock(trio.abc.Clock):
    """Jumps to the next deadline as soon as all tasks wait, like `trio.testing.MockClock` with autojump."""

    def __init__(self) -> None:
        self._now = 0.0
        self._naps: list[tuple[float, int, Nap]] = []
        self._sequence = 0

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""

    def current_time(self) -> float:
        """Seconds since the start."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task can run."""
        if trio_run.GLOBAL_RUN_CONTEXT.runner.waiting_for_idle:
            return inf  # tasks in `wait_all_tasks_blocked` come before the jump
        naps = self._naps
        while naps and naps[0][2].task is None:
            heappop(naps)
        if naps:
            deadline = min(deadline, naps[0][0])
        if deadline == inf:
            return inf
        if deadline > self._now:
            self._now += deadline - self._now
        while naps and naps[0][0] <= self._now:
            heappop(naps)[2].end()
        return 0

    def wake(self, nap: Nap, time: float) -> None:
        """End a nap at a time in the future."""
        self._sequence += 1
        heappush(self._naps, (time, self._sequence, nap))


class Nap:
    """One wait of one task."""

    __slots__ = ("_is_shielded", "_scope", "task")

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self._is_shielded = False
        self._scope: trio.CancelScope | None = None

    async def until(self, time: float, *, shield: bool = False) -> None:
        """Wait until a time in the future, or until `end`. With `shield`, a cancellation does not end the wait."""
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, VirtualClock):
            self.task, self._is_shielded = trio.lowlevel.current_task(), shield
            if time != inf:
                clock.wake(self, time)
            await trio.lowlevel.wait_task_rescheduled(self._on_abort)
        else:
            with trio.CancelScope(deadline=time, shield=shield) as self._scope:
                await trio.sleep_forever()

    def end(self) -> None:
        """End the wait now. Without effect before it begins and after it has ended."""
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None
        elif self._scope is not None:
            self._scope.cancel()

    def _on_abort(self, _: object) -> trio.lowlevel.Abort:
        if self._is_shielded:
            return trio.lowlevel.Abort.FAILED
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


async def sleep(seconds: float, *, shield: bool = False) -> None:
    """Like `trio.sleep`. With `shield`, a cancellation does not end it."""
    if seconds > 0:
        await Nap().until(trio.current_time() + seconds, shield=shield)
    else:
        with trio.CancelScope(shield=shield):
            await trio.lowlevel.checkpoint()
