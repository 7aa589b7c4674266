"""How many bytes may go to the tier, or come from it, in a second.

A piece may begin while the budget is not overdrawn, and is then paid as a whole: a segment that is larger than the
budget of many seconds passes too, and those behind it wait until that is made up for. What was not used is kept for as
long as the windows of the setting last.

Source  KIP-956; RLMQuotaManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from kbroker.config.settings import MAX_INT64
from kbroker.runtime.metrics import Histogram


class ByteQuota:
    """A budget of bytes, by monotonic time.

    Units      rate in bytes per second, MAX_INT64 for no limit; window_ms is for how long unused budget is kept
    Note       throttled_us is for how long each of those was kept waiting that could not begin at once
    Invariant  within any t seconds at most rate * (t + window) bytes begin, and one piece more
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
        """Go on with another rate; what was overdrawn stays to be made up for."""
        self._refill(now_ms)
        was_unlimited = self.is_unlimited
        self._rate, self._window_ms = rate, window_ms
        capacity = rate * window_ms / 1000
        self._level = capacity if was_unlimited else min(self._level, capacity)

    def wait_ms(self, now_ms: int) -> int:
        """For how long nothing may begin; 0 for not at all."""
        self._refill(now_ms)
        if self.is_unlimited or self._level >= 0:
            return 0
        return int(-self._level * 1000 // self._rate) + 1

    def take(self, amount: int, *, now_ms: int, since_ms: int) -> None:
        """Pay for what begins now, and was to begin at `since_ms`."""
        if now_ms > since_ms:
            self.throttled_us.record((now_ms - since_ms) * 1000)
        self._refill(now_ms)
        if not self.is_unlimited:
            self._level -= amount

    def _refill(self, now_ms: int) -> None:
        passed_ms = now_ms - self._updated_ms
        self._updated_ms = now_ms
        if not self.is_unlimited:
            self._level = min(self._rate * self._window_ms / 1000, self._level + passed_ms * self._rate / 1000)
