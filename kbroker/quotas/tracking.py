"""What clients have used of their quotas.

Bound: at most max_tags users, client ids or addresses are remembered. Those that have been idle for longest are
forgotten first, so a client that changes its client id with each request uses no more memory. A forgotten client
starts again with an unused quota, as it also would with a new client id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kbroker.quotas.limits import QuotaLimits, Tag
from kbroker.quotas.rates import SampledRate, Windows

Measure = TypeVar("Measure")
Key = TypeVar("Key")

IDLE_MS: Final = 3_600_000
"""As in Kafka. Windows are much shorter: until then, an idle client is only of interest for metrics."""


class Used(Generic[Measure]):
    """One measured tag. throttled and throttles are the sum and the number of its throttle times in the windows."""

    __slots__ = ("_throttled", "_throttles", "last_ms", "limit", "measure")

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.limit = 0.0
        self.last_ms = 0
        self._throttled: SampledRate | None = None
        self._throttles: SampledRate | None = None

    def note_throttled(self, throttle_ms: int, now_ms: int, windows: Windows) -> None:
        """Count a throttle time, for metrics."""
        if self._throttled is None or self._throttles is None:
            self._throttled, self._throttles = SampledRate(windows), SampledRate(windows)
        self._throttled.record(throttle_ms, now_ms)
        self._throttles.record(1, now_ms)

    def throttle_time_ms(self, now_ms: int) -> float:
        """The average of the throttle times in the windows; 0 if there were none."""
        if self._throttled is None or self._throttles is None:
            return 0.0
        times = self._throttles.rate(now_ms)
        return self._throttled.rate(now_ms) / times if times else 0.0


class UsageTable(Generic[Key, Measure]):
    """What is measured, by tag or address."""

    def __init__(self, new: Callable[[Windows], Measure], windows: Windows, *, max_tags: int) -> None:
        self.windows = windows
        self._new = new
        self._max_tags = max_tags
        self._used: OrderedDict[Key, Used[Measure]] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._used)

    def use(self, key: Key, limit: float, now_ms: int) -> Used[Measure]:
        """The entry of a key, with its limit as it is now."""
        used = self._used.get(key)
        if used is None:
            self._forget(now_ms)
            used = self._used[key] = Used(self._new(self.windows))
        else:
            self._used.move_to_end(key)
        used.limit, used.last_ms = limit, now_ms
        return used

    def clear(self) -> None:
        """Forget all."""
        self._used.clear()

    def items(self) -> list[tuple[Key, Used[Measure]]]:
        """A copy, for metrics."""
        return list(self._used.items())

    def _forget(self, now_ms: int) -> None:
        while self._used:
            oldest = next(iter(self._used))
            if len(self._used) < self._max_tags and now_ms - self._used[oldest].last_ms <= IDLE_MS:
                return
            del self._used[oldest]


class ClientUsage(UsageTable[Tag, Measure]):
    """What users and client ids have used of one quota."""

    def __init__(
        self, key: str, limits: QuotaLimits, new: Callable[[Windows], Measure], windows: Windows, *, max_tags: int
    ) -> None:
        super().__init__(new, windows, max_tags=max_tags)
        self._key = key
        self._limits = limits

    @property
    def is_limited(self) -> bool:
        """Whether any client has a limit."""
        return self._limits.limits(self._key)

    def of(self, user: str, client_id: str, now_ms: int) -> Used[Measure] | None:
        """The entry of a client; None if it has no limit."""
        found = self._limits.of(self._key, user, client_id)
        return None if found is None else self.use(*found, now_ms)
