"""A byte rate limit for copies to the tier, or for reads from it.

A piece may start while the budget is not overdrawn, and is then charged in full. So a segment larger than the budget of
many seconds can pass, and later segments wait until the deficit is refilled. Unused budget is kept for the duration of
the configured windows.

Source  KIP-956; RLMQuotaManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final

from kbroker.config.settings import MAX_INT64
from kbroker.runtime.metrics import Histogram
from kbroker.runtime.net_ports import Env

LONGEST_PAUSE_MS: Final = 1_000


class ByteQuota:
    """A budget of bytes over monotonic time.

    Units      rate in bytes per second, MAX_INT64 for no limit; window_ms is how long unused budget is kept
    Note       throttled_us records the wait of each piece that could not start immediately
    Invariant  within any t seconds at most rate * (t + window) bytes start, plus one piece
    """

    __slots__ = ("_level", "_rate", "_updated_ms", "_window_ms", "throttled_us")

    def __init__(self, rate: int, *, window_ms: int, now_ms: int) -> None:
        self.throttled_us = Histogram()
        self._rate = rate
        self._window_ms = window_ms
        self._level = rate * window_ms / 1000
        self._updated_ms = now_ms

    @property
    def is_unlimited(self) -> bool:
        return self._rate >= MAX_INT64

    def change(self, rate: int, *, window_ms: int, now_ms: int) -> None:
        """Change the rate; a deficit is kept."""
        self._refill(now_ms)
        was_unlimited = self.is_unlimited
        self._rate, self._window_ms = rate, window_ms
        capacity = rate * window_ms / 1000
        self._level = capacity if was_unlimited else min(self._level, capacity)

    async def admit(self, amount: int, env: Env) -> None:
        """Wait until a piece may start, and charge it."""
        now_ms = began_ms = env.now_ms()
        self._refill(now_ms)
        while self._level < 0 and not self.is_unlimited:
            pause_ms = int(-self._level * 1000 // self._rate) + 1
            await env.sleep_ms(min(pause_ms, LONGEST_PAUSE_MS))  # the rate may change while this waits
            now_ms = env.now_ms()
            self._refill(now_ms)
        if now_ms > began_ms:
            self.throttled_us.record((now_ms - began_ms) * 1000)
        if not self.is_unlimited:
            self._level -= amount

    def _refill(self, now_ms: int) -> None:
        passed_ms = now_ms - self._updated_ms
        self._updated_ms = now_ms
        if not self.is_unlimited:
            self._level = min(self._rate * self._window_ms / 1000, self._level + passed_ms * self._rate / 1000)
