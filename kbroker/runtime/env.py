"""The real world: the only module that reads clocks, draws chance, or starts threads.

Everything else is given an `Env` (see `kbroker.runtime.net_ports`), so the same code runs in a simulation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple
from uuid import UUID

import trio

from kbroker.runtime import net
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.net_ports import DEFAULT_BUFFERS, Buffers
from kbroker.runtime.ports import Disk

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class RealEnv:
    """The clocks, chance, network, disk and threads of this process.

    Bound  at most `max_threads` blocking calls run at once; further ones wait their turn
    """

    def __init__(self, *, max_threads: int = 8, disk: Disk | None = None) -> None:
        self.random = random.Random()
        self.disk: Disk = disk or RealDisk()
        self._threads = trio.CapacityLimiter(max_threads)

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def timestamp_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def new_uuid(self) -> UUID:
        while True:
            made = UUID(int=self.random.getrandbits(128), version=4)
            # The base64 text begins with the top six bits; 62 is the dash, which command lines take for an option.
            if made.int >> 122 != 62:
                return made

    async def listen(
        self, host: str, port: int, *, backlog: int, buffers: Buffers = DEFAULT_BUFFERS
    ) -> net.SocketListener:
        return await net.listen(host, port, backlog=backlog, buffers=buffers, run_blocking=self.run_blocking)

    async def connect(self, host: str, port: int) -> net.SocketStream:
        return await net.connect(host, port, run_blocking=self.run_blocking)

    async def sleep_ms(self, delay_ms: int) -> None:
        await trio.sleep(delay_ms / 1000)

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._threads)
