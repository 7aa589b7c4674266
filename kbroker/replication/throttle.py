"""Limits on the replication traffic of single replicas, so that a reassignment leaves room for clients.

A leader gives throttled followers nothing while it has sent them more than `leader.replication.throttled.rate`, and a
follower does not fetch throttled partitions while it has received more than `follower.replication.throttled.rate`. The
rate is that of the last windows. In-sync replicas are counted but not delayed: otherwise a throttle could shrink ISRs.

Source: KIP-73; ReplicationQuotaManager and Rate of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import deque
from typing import Final

UNLIMITED: Final = (1 << 63) - 1
ALL_REPLICAS: Final = "*"


class ReplicationThrottle:
    """The traffic in one direction, and its limit.

    Units  rate is in bytes per second; now_ms is monotonic
    Bound  one sample for each window
    """

    def __init__(self, *, windows: int = 11, window_ms: int = 1_000) -> None:
        self.rate = UNLIMITED
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[tuple[int, int]] = deque()  # (number of the window, bytes)
        self._total = 0

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of a throttled replica."""
        window = now_ms // self._window_ms
        self._expire(window)
        self._total += size
        if self._samples and self._samples[-1][0] == window:
            size += self._samples.pop()[1]
        self._samples.append((window, size))

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the rate of the last windows is above the limit."""
        return self.wait_ms(now_ms) > 0

    def wait_ms(self, now_ms: int) -> int:
        """How long the rate of the last windows stays above the limit if there is no further traffic; 0 below it."""
        if self.rate == UNLIMITED:
            return 0
        self._expire(now_ms // self._window_ms)
        if not self._samples:
            return 0
        # The first rate is that of almost all windows, although fewer have passed: this allows a burst at the start.
        elapsed_ms = max(now_ms - self._samples[0][0] * self._window_ms, (self._windows - 1) * self._window_ms)
        if self._total * 1_000 <= self.rate * elapsed_ms:
            return 0
        longest_ms = self._windows * self._window_ms
        return min(longest_ms, self._total * 1_000 // self.rate + 1 - elapsed_ms) if self.rate else longest_ms

    def _expire(self, window: int) -> None:
        while self._samples and self._samples[0][0] <= window - self._windows:
            self._total -= self._samples.popleft()[1]


def is_throttled(replicas: frozenset[str], index: int, broker_id: int) -> bool:
    """Whether a topic's throttled replicas (`partition:broker`, or `*`) include this one."""
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{index}:{broker_id}" in replicas)
