"""Lets requests wait until an object that they depend on has changed.

Theory of operation: a waiter registers under the keys (usually topic-partitions) whose change may satisfy it, parks,
and evaluates its predicate again whenever one of the keys is woken. Only the pure predicate decides. A wake is a hint:
waking too often is only slow, and two wakes before the waiter runs count as one. No other task runs between evaluating
the predicate and parking, so no wake is lost. Every append wakes its partition; a wake of a key without waiters costs
one dictionary look-up.

A request that is satisfied at once never parks, sets no deadline and does not yield.

Source: decision 4 of ARCHITECTURE.md; the role of Kafka's DelayedOperationPurgatory, without its timer wheel and
callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import trio


class _Waiter:
    __slots__ = ("parked", "task", "waits_for_appends")

    def __init__(self, task: trio.lowlevel.Task, *, waits_for_appends: bool) -> None:
        self.task = task
        self.parked = False
        self.waits_for_appends = waits_for_appends

    def on_abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.parked = False  # trio schedules the task now; a wake must not schedule it again
        return trio.lowlevel.Abort.SUCCEEDED


class Purgatory:
    """The waiters of one broker, by key.

    Shape      a waiter is registered under each of its keys exactly while `wait` runs
    Bound      one waiter for each request in progress, so one for each connection
    Invariant  a key without waiters uses no memory
    """

    def __init__(self) -> None:
        # The inner dictionaries are ordered sets: waiters wake in order of arrival, the same in every run.
        self._waiters: dict[Hashable, dict[_Waiter, None]] = {}

    async def wait(self, *keys: Hashable, until: Callable[[], bool], max_wait_ms: int) -> bool:
        """Wait until `until()` holds and return True, or return False after `max_wait_ms`."""
        if until():
            return True
        return max_wait_ms > 0 and await self.park(
            *keys, until=until, max_wait_ms=max_wait_ms, scope=trio.CancelScope()
        )

    async def park(
        self,
        *keys: Hashable,
        until: Callable[[], bool],
        max_wait_ms: int,
        scope: trio.CancelScope,
        waits_for_appends: bool = False,
    ) -> bool:
        """Like `wait`, for a caller that has already found `until()` false.

        The wait runs in `scope`; cancel the scope to end the wait early. A follower `waits_for_appends`: it reads up to
        the end of the log, so a raised high watermark does not concern it, and an append alone concerns only it.
        """
        waiter = _Waiter(trio.lowlevel.current_task(), waits_for_appends=waits_for_appends)
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
        # The deadline and the change may have come at the same time: the predicate decides.
        return until()

    def wake(self, key: Hashable) -> None:
        """Make the waiters of `key` evaluate their predicates again."""
        waiters = self._waiters.get(key)
        if waiters:
            self._wake_all(waiters)

    def wake_for_append(self, key: Hashable) -> None:
        """`wake` for an append that has not raised the high watermark."""
        waiters = self._waiters.get(key)
        if waiters:
            self._wake_all([waiter for waiter in waiters if waiter.waits_for_appends])

    def wake_for_high_watermark(self, key: Hashable) -> None:
        """`wake` for a raised high watermark, without an append."""
        waiters = self._waiters.get(key)
        if waiters:
            self._wake_all([waiter for waiter in waiters if not waiter.waits_for_appends])

    def wake_many(self, keys: Iterable[Hashable]) -> None:
        """`wake` for each of `keys`."""
        for key in keys:
            self.wake(key)

    def waiting(self, key: Hashable) -> int:
        """The number of waiters on `key`: for metrics and tests."""
        return len(self._waiters.get(key, ()))

    @property
    def size(self) -> int:
        """The number of waiters, each counted once: for metrics."""
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
