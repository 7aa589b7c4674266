"""The real environment: with `clocks`, the only module that reads clocks, draws random numbers, or starts threads.

All other code gets an `Env` (see `kbroker.runtime.net_ports`), so the same code runs in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio
from mypy_extensions import mypyc_attr
from outcome import Outcome

from kbroker.runtime import listening, net
from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.net_ports import DEFAULT_OPTIONS, SocketOptions
from kbroker.runtime.ports import Disk

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class RealThreads:
    """Threads of this process. At most `max_threads` run at once; further calls wait in order.

    Faster than trio.to_thread.run_sync, which names the thread, copies the context and yields to other tasks before it
    starts the thread. This class starts the thread before any other task runs.

    Note  abandons: a cancelled caller does not wait for its call; abandoned counts running calls without a caller
    """

    def __init__(self, max_threads: int) -> None:
        self.abandons = False
        self.abandoned = 0
        self._max_threads = max_threads
        self._working = 0
        self._waiting = trio.lowlevel.ParkingLot()

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._working < self._max_threads:
            self._working += 1
        else:
            await self._waiting.park()  # the next call that ends passes its thread on
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        is_awaited = True

        def finish(result: Outcome[Result]) -> None:
            if is_awaited:
                trio.lowlevel.reschedule(task, result)
            else:
                self.abandoned -= 1

        def deliver(result: Outcome[Result]) -> None:
            with suppress(trio.RunFinishedError):  # only an abandoned call can end after the event loop
                token.run_sync_soon(finish, result)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal is_awaited
            if not self.abandons:
                return trio.lowlevel.Abort.FAILED
            is_awaited = False
            self.abandoned += 1
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            trio.lowlevel.start_thread_soon(partial(function, *arguments), deliver)
            found: Result = await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            if self._working > self._max_threads or not self._waiting.unpark():
                self._working -= 1
        return found

    def resize(self, max_threads: int) -> None:
        self._max_threads = max_threads
        more = min(max(0, max_threads - self._working), len(self._waiting))
        self._working += more
        self._waiting.unpark(count=more)


@mypyc_attr(allow_interpreted_subclasses=True)
class RealEnv(RealClocks):
    """The clocks, randomness, network, disk and threads of this process.

    Bound  at most `max_threads` blocking calls run at once; further calls wait in order
    """

    def __init__(self, *, max_threads: int = 8) -> None:
        super().__init__()
        self.disk: Disk = RealDisk()
        self._threads = RealThreads(max_threads)
        self._other_threads: list[RealThreads] = []

    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS, *, accepts: bool = True
    ) -> listening.SocketListener:
        window_ns = options.busy_poll_us * 1000
        poll = net.BusyPoll(window_ns=window_ns, now_ns=self.now_ns) if window_ns else None
        return await listening.listen(
            host, port, options, run_blocking=self.run_waiting, busy_poll=poll, accepts=accepts
        )

    async def connect(self, host: str, port: int) -> net.SocketStream:
        return await net.connect(host, port, run_blocking=self.run_waiting)

    async def sleep_ms(self, delay_ms: int) -> None:
        await trio.sleep(delay_ms / 1000)

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await self._threads.run_blocking(function, *arguments)

    async def run_waiting(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """As `run_blocking`, for a call that waits for a network, or for data that are not in memory."""
        return await self.run_blocking(function, *arguments)

    def threads(self, max_threads: int) -> RealThreads:
        made = RealThreads(max_threads)
        self._other_threads.append(made)
        return made

    def abandon_threads(self) -> None:
        for one in self._other_threads:
            one.abandons = True

    @property
    def abandoned(self) -> int:
        """The number of running calls whose callers were cancelled; their threads keep the process from exiting."""
        return sum(one.abandoned for one in self._other_threads)
