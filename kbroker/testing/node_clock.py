"""The environment of real nodes of tests: a clock that a test can set forward, and a disk that does not sync and is
called without threads.

Timers that fall into the skipped time are due at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio
from trio.abc import Clock

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.runtime.env import RealEnv

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class NodeClock(Clock):
    """trio's clock for a node, and an offset that only grows."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self._token: trio.lowlevel.TrioToken | None = None

    def start_clock(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def current_time(self) -> float:
        return (RealEnv.now_ns() + self.offset_ms * 1_000_000) / 1e9

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()

    def advance(self, milliseconds: int) -> None:
        """Set the clock forward. From any thread."""
        assert milliseconds >= 0, "time does not run backwards"
        self.offset_ms += milliseconds
        assert self._token is not None, "the node runs"
        self._token.run_sync_soon(_wake)


class _UnsyncedFile(RealFile):
    __slots__ = ()

    def sync(self) -> None:
        """Nothing. What is written outlives the process, not the machine; a test does not need more."""


class _UnsyncedDisk(RealDisk):
    """A disk without syncs: a start makes 20 of them, and a test with a topic four, each of up to 10 ms."""

    file_class = _UnsyncedFile

    def sync_directory(self, path: str) -> None:
        """Nothing; see `_UnsyncedFile`."""


class ClockedEnv(RealEnv):
    """The environment of a node whose clocks are a `NodeClock`, and which does not sync its files.

    A call that does not sync takes less time than the way to a thread and back, and a test makes ten of them. Calls to
    a network or a store have threads as in RealEnv.
    """

    def __init__(self, clock: NodeClock) -> None:
        super().__init__()
        self.disk = _UnsyncedDisk()
        self._clock = clock

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    async def run_waiting(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await super().run_blocking(function, *arguments)

    def now_ns(self) -> int:
        return RealEnv.now_ns() + self._clock.offset_ms * 1_000_000

    def now_ms(self) -> int:
        return self.now_ns() // 1_000_000

    def timestamp_ms(self) -> int:  # type: ignore[override]
        return RealEnv.timestamp_ms() + self._clock.offset_ms


def _wake() -> None:
    """Nothing: the event loop computes its next deadline again."""
