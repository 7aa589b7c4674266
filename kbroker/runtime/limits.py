"""How much of something may pass in a time: token buckets, and the same for log lines.

Both take `now_ms` and keep no clock, so that quotas, throttled copies and rate-limited logs are tested as tables.
"""

from __future__ import annotations

from collections.abc import Hashable


class TokenBucket:
    """So many units a second on average, `burst` of them at once.

    Units      rate in units per second (bytes, connections, ...); time in milliseconds of monotonic time
    Invariant  takers that pause as long as they are told take at most burst + rate * t within any t seconds, and one
               taking more: what is larger than the burst must pass too, and those after it pay
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
        """Take `amount`; return for how many milliseconds the taker should pause before it takes more, 0 for none."""
        self._level = min(self.burst, self._level + (now_ms - self._updated_ms) * self.rate / 1000) - amount
        self._updated_ms = now_ms
        if self._level >= 0:
            return 0
        return -int(self._level * 1000 // self.rate)


class RateLimitedLog:
    """Decides which log lines about one subject (an address, a partition) are written.

    Shape  a line for each subject in `interval_ms`, and how many were left out in between
    Bound  `max_subjects` are remembered; with more, the one that was written about longest ago is forgotten (and may be
           written about again at once)
    """

    def __init__(self, *, interval_ms: int, max_subjects: int = 1000) -> None:
        self._interval_ms = interval_ms
        self._max_subjects = max_subjects
        self._subjects: dict[Hashable, _Subject] = {}

    def admit(self, subject: Hashable, *, now_ms: int) -> int | None:
        """None to leave the line out; otherwise write it, with the number of lines left out since the last one."""
        known = self._subjects.get(subject)
        if known is not None and now_ms - known.written_ms < self._interval_ms:
            known.left_out += 1
            return None
        # Written about just now means last in the order of the dictionary: its first is the one to forget.
        self._subjects.pop(subject, None)
        if len(self._subjects) >= self._max_subjects:
            del self._subjects[next(iter(self._subjects))]
        self._subjects[subject] = _Subject(now_ms)
        return known.left_out if known is not None else 0


class _Subject:
    __slots__ = ("left_out", "written_ms")

    def __init__(self, written_ms: int) -> None:
        self.written_ms = written_ms
        self.left_out = 0
