"""Rate limits: a token bucket, and a limiter for log lines.

Both take `now_ms` as an argument and have no clock, so that tests are tables.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MAX_SUBJECTS: Final = 1_000


class TokenBucket:
    """Allows `rate` units per second on average, and up to `burst` units at once.

    Units      rate in units per second (bytes, connections, ...); time in milliseconds of monotonic time
    Invariant  callers that pause as returned take at most burst + rate * t in any t seconds, plus one take: an amount
               larger than the burst must pass too, and the following takers wait for it
    """

    __slots__ = ("_level", "_updated_ms", "burst", "rate")

    def __init__(self, rate: float, burst: float, *, now_ms: int) -> None:
        assert rate > 0
        assert burst > 0
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._updated_ms = now_ms

    def take(self, amount: float, *, now_ms: int) -> int:
        """Take `amount`; return the milliseconds that the caller should pause before the next take, 0 for none."""
        self._level = min(self.burst, self._level + (now_ms - self._updated_ms) * self.rate / 1000) - amount
        self._updated_ms = now_ms
        if self._level >= 0:
            return 0
        return -int(self._level * 1000 // self.rate)


class RateLimitedLog:
    """Limits the log lines about each subject (an address, a partition).

    Shape  `lines` per subject in each `interval_ms`, with the number of lines left out since the last one
    Bound  MAX_SUBJECTS subjects; beyond that, the subject with the oldest interval is evicted (its next line is written
           at once)
    """

    def __init__(self, *, interval_ms: int, lines: int = 1) -> None:
        self._interval_ms = interval_ms
        self._lines = lines
        self._subjects: dict[Hashable, _Subject] = {}

    def admit(self, subject: Hashable, *, now_ms: int) -> int | None:
        """None to leave the line out; otherwise write it, with the number of lines left out since the last one."""
        known = self._subjects.get(subject)
        if known is not None and now_ms - known.began_ms < self._interval_ms:
            if known.written < self._lines:
                known.written += 1
                return 0
            known.left_out += 1
            return None
        # Insertion order is the order of the intervals: the first entry is the one to evict.
        self._subjects.pop(subject, None)
        if len(self._subjects) >= MAX_SUBJECTS:
            del self._subjects[next(iter(self._subjects))]
        self._subjects[subject] = _Subject(now_ms)
        return known.left_out if known is not None else 0

    def begins_to_leave_out(self, subject: Hashable) -> bool:
        """Whether the line that `admit` has just refused is the first one in its interval."""
        known = self._subjects.get(subject)
        return known is not None and known.left_out == 1


class _Subject:
    __slots__ = ("began_ms", "left_out", "written")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.written = 1
        self.left_out = 0
