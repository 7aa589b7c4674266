"""An environment in memory, on trio's clock: virtual time under `trio.testing.MockClock`.

The monotonic clock and the wall clock start at different, recognizable numbers, so that code which confuses them fails
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random  # noqa: TID251 - seeded: the environment is the source of randomness
from typing import TypeVar, TypeVarTuple
from uuid import UUID

import trio

from kbroker.runtime.net_ports import DEFAULT_OPTIONS, SocketOptions
from kbroker.runtime.ports import Disk
from kbroker.testing.net import MemoryListener, MemoryNetwork, MemoryStream, Network
from kbroker.testing.virtual_time import sleep

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

MONOTONIC_START_MS = 1_000_000
WALL_START_MS = 1_700_000_000_000


class MemoryEnv:
    """See `kbroker.runtime.net_ports.Env`.

    Blocking functions run in the event loop. One starts after a random delay of up to latency_ms and returns after
    another one, so that concurrent tasks interleave with it. wall_jump_ms is the error of the wall clock, as if an
    operator had set it wrongly, and wall_drift how much faster it runs than the monotonic clock, as a ratio (1e-4: 0.1
    ms each second); neither affects the monotonic clock. A blocking function that takes longer says so with `charge`.
    """

    def __init__(self, disk: Disk, *, seed: int = 0, latency_ms: int = 0) -> None:
        self.disk = disk
        self.network: Network = MemoryNetwork()
        self.random = Random(seed)
        self.latency_ms = latency_ms
        self.wall_jump_ms = 0
        self.wall_drift = 0.0
        self.ahead_ms = 0
        self._charged_ms = 0.0

    def now_ms(self) -> int:
        return MONOTONIC_START_MS + round(trio.current_time() * 1000)

    def now_ns(self) -> int:
        return MONOTONIC_START_MS * 1_000_000 + round(trio.current_time() * 1e9)

    def timestamp_ms(self) -> int:
        return WALL_START_MS + self.wall_jump_ms + round(trio.current_time() * 1000 * (1 + self.wall_drift))

    def new_uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(127), version=4)

    async def listen(
        self,
        host: str,
        port: int,
        options: SocketOptions = DEFAULT_OPTIONS,  # noqa: ARG002  (an Env has it)
        *,
        accepts: bool = True,
    ) -> MemoryListener:
        return await self.network.listen(host, port, accepts=accepts)

    async def connect(self, host: str, port: int) -> MemoryStream:
        return await self.network.connect(host, port)

    async def sleep_ms(self, delay_ms: int) -> None:
        await sleep(delay_ms / 1000)

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        if not self.latency_ms:
            await trio.lowlevel.checkpoint()
            return function(*arguments)
        # A thread cannot be cancelled.
        await sleep(self.random.uniform(0, self.latency_ms) / 1000, shield=True)
        self._charged_ms = 0
        try:
            return function(*arguments)
        finally:
            await sleep((self.random.uniform(0, self.latency_ms) + self._charged_ms) / 1000, shield=True)

    def charge(self, ms: float) -> None:
        """The blocking function that runs now takes this much longer. Without latency_ms it has no effect."""
        self._charged_ms += ms

    def threads(self, max_threads: int) -> MemoryThreads:
        return MemoryThreads(self, max_threads)

    def abandon_threads(self) -> None:
        """Calls end by themselves here, in virtual time."""


class MemoryThreads:
    """Like `MemoryEnv.run_blocking` of its environment, with a limit on concurrent calls."""

    def __init__(self, env: MemoryEnv, max_threads: int) -> None:
        self._env = env
        self._limiter = trio.CapacityLimiter(max_threads)

    @property
    def max_threads(self) -> float:
        return self._limiter.total_tokens

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        async with self._limiter:
            return await self._env.run_blocking(function, *arguments)

    def resize(self, max_threads: int) -> None:
        self._limiter.total_tokens = max_threads
