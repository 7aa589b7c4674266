"""How fast something happens, compared with a limit: a rate over samples, and a bucket of tokens.

A rate is the sum of the last samples divided by the time since the first of them. At the start it counts as if all but
one sample had passed, so a client may use the quota of (samples - 1) windows at once. If the rate is above its limit,
the time to wait is that after which it is within the limit, if nothing else happens.

The bucket holds the quota of all windows. A client that takes more than it holds waits until it is refilled to zero.

Source: Rate, SampledStat and TokenBucket of Apache Kafka 4.3.1; KIP-13, KIP-599.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_INT32: Final = 2**31 - 1
"""Throttle times are int32."""


class Windows(NamedTuple):
    """How a rate is measured: the samples that are kept, and the length of each."""

    number: int = 11
    size_ms: int = 1_000

    @property
    def longest_burst_ms(self) -> int:
        """The time whose quota may be used at once."""
        return (self.number - 1) * self.size_ms


class SampledRate:
    """The rate of the last windows.

    Units  values of any unit; the rate is per second; now_ms is monotonic
    Bound  one sample for each window, and one more that overlaps the first
    """

    __slots__ = ("_samples", "_windows", "total")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[list[float]] = []  # [start in ms, last in ms, sum], oldest first
        self.total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Count a value; a negative one takes a value back."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._windows.size_ms:
            samples.append([now_ms, now_ms, 0.0])
            if len(samples) > self._windows.number + 1:
                self.total -= samples.pop(0)[2]
        latest = samples[-1]
        latest[1] = now_ms
        latest[2] += value
        self.total += value

    def rate(self, now_ms: int) -> float:
        """Units per second."""
        elapsed_ms = self._elapsed_ms(now_ms)  # this changes the total
        return self.total * 1000 / elapsed_ms

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Milliseconds until the rate is within the limit, at most MAX_INT32; 0 if it is now."""
        elapsed_ms = self._elapsed_ms(now_ms)
        rate = self.total * 1000 / elapsed_ms
        if not rate > limit:
            return 0
        wait_ms = (rate - limit) / limit * elapsed_ms if limit > 0 else MAX_INT32
        return MAX_INT32 if wait_ms >= MAX_INT32 else round(wait_ms)

    def _elapsed_ms(self, now_ms: int) -> float:
        """The time that the samples cover; removes those that are over."""
        samples, (number, size_ms) = self._samples, self._windows
        while samples and now_ms - samples[0][1] >= number * size_ms:
            self.total -= samples.pop(0)[2]
        if not samples:
            self.total = 0.0
            return max(1, (number - 1) * size_ms)
        elapsed_ms = now_ms - samples[0][0]
        missing = number - 1 - elapsed_ms // size_ms
        return max(1.0, elapsed_ms + (missing * size_ms if missing > 0 else 0))


class Bucket:
    """Tokens that are refilled at the limit, up to the limit of all windows. It begins full.

    Units  limit in tokens per second; now_ms is monotonic
    """

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens: float | None = None
        self._updated_ms = 0

    def record(self, value: float, limit: float, now_ms: int) -> None:
        """Take tokens, even if too few are left."""
        self._tokens, self._updated_ms = self.tokens(limit, now_ms) - value, now_ms

    def tokens(self, limit: float, now_ms: int) -> float:
        """The tokens that are left; below zero if too many were taken."""
        full = self._windows.number * self._windows.size_ms / 1000 * limit
        if self._tokens is None:
            return full
        return min(full, self._tokens + limit * (now_ms - self._updated_ms) / 1000)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Milliseconds until no tokens are missing, at most MAX_INT32."""
        tokens = self.tokens(limit, now_ms)
        if not tokens < 0:
            return 0
        wait_ms = -tokens * 1000 / limit if limit > 0 else MAX_INT32
        return MAX_INT32 if wait_ms >= MAX_INT32 else round(wait_ms)
