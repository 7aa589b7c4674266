"""Where requests wait until something that they look at has changed.

Theory of operation: a waiter registers under the keys (usually topic-partitions) whose change may satisfy it, parks,
and evaluates its predicate again whenever one of the keys is woken. The predicate is pure and is what decides; a wake
is only a hint, so to wake too often is merely slow, and two wakes before the waiter runs are one. Nothing lies between
the evaluation and the parking, so that no wake is lost. A wake of a key on which nobody waits costs one look into a
dictionary: it is on the path of every append.

A request that is satisfied at once never parks, sets no deadline and does not yield.

Source: decision 4 of ARCHITECTURE.md; the role of Kafka's DelayedOperationPurgatory, without its timer wheel and
callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import trio


class _Waiter:
    __slots__ = ("parked", "task")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self.parked = False

    def on_abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.parked = False  # trio runs the task now; a wake must not do so again
        return trio.lowlevel.Abort.SUCCEEDED


class Purgatory:
    """The waiters of one broker, by key.

    Shape      a waiter is registered under each of its keys exactly while `wait` runs
    Bound      one waiter for each request in progress, thus for each connection
    Invariant  a key without waiters takes no memory
    """

    def __init__(self) -> None:
        # The inner dictionaries are ordered sets: the order of wakes is the order of arrival, in every run alike.
        self._waiters: dict[Hashable, dict[_Waiter, None]] = {}

    async def wait(self, *keys: Hashable, until: Callable[[], bool], max_wait_ms: int) -> bool:
        """Wait until `until()` holds and return True, or return False after `max_wait_ms`."""
        if until():
            return True
        return max_wait_ms > 0 and await self.park(
            *keys, until=until, max_wait_ms=max_wait_ms, scope=trio.CancelScope()
        )

    async def park(self, *keys: Hashable, until: Callable[[], bool], max_wait_ms: int, scope: trio.CancelScope) -> bool:
        """`wait`, after the caller has found that `until()` does not hold yet.

        `scope` is entered here: whoever has it may cancel it to end the wait early.
        """
        waiter = _Waiter(trio.lowlevel.current_task())
        for key in keys:
            self._waiters.setdefault(key, {})[waiter] = None
        try:
            with scope:
                scope.deadline = trio.current_time() + max_wait_ms / 1000
                while True:
                    waiter.parked = True
                    await trio.lowlevel.wait_task_rescheduled(waiter.on_abort)
                    if until():
                        return True
        finally:
            for key in dict.fromkeys(keys):
                self._remove(key, waiter)
        # The deadline and the change may have come in one tick: the predicate decides, not the race.
        return until()

    def wake(self, key: Hashable) -> None:
        """Something about `key` has changed: let its waiters look again."""
        waiters = self._waiters.get(key)
        if waiters:
            self._wake_all(waiters)

    def wake_many(self, keys: Iterable[Hashable]) -> None:
        """`wake` for each of `keys`."""
        for key in keys:
            self.wake(key)

    def waiting(self, key: Hashable) -> int:
        """How many wait on `key`: for metrics and tests."""
        return len(self._waiters.get(key, ()))

    @property
    def size(self) -> int:
        """How many wait, each counted once: for metrics."""
        return len({waiter for waiters in self._waiters.values() for waiter in waiters})

    @staticmethod
    def _wake_all(waiters: Iterable[_Waiter]) -> None:
        for waiter in waiters:
            if waiter.parked:
                waiter.parked = False
                trio.lowlevel.reschedule(waiter.task)

    def _remove(self, key: Hashable, waiter: _Waiter) -> None:
        waiters = self._waiters[key]
        del waiters[waiter]
        if not waiters:
            del self._waiters[key]
