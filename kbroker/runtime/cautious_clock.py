"""The clock that retention uses: time-based deletion pauses for one hour after a large clock jump.

Theory of operation: the difference between the wall clock and the monotonic clock is constant except for small
corrections. If it changes by more than an hour, the wall clock was set. The new time may be wrong, and a broker that
trusts a clock that is a year ahead deletes all its data. So this clock continues from the old time, counted by the
monotonic clock, until the new wall time has been stable for an hour. In that hour an operator can correct the clock
without losing data.

A process that starts while its clock is wrong cannot see a jump. A broker with a controller elsewhere compares the
clocks (`kbroker.controller.clock_check`): while its own is ahead by more than an hour, this clock is the controller's.

A backward jump is trusted at once, because it only makes records younger. So this clock is never ahead of the wall
clock.

A machine that was suspended looks like one whose clock was set ahead: it deletes old records an hour late.

Source: row T2 of the list of faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.runtime.ports import Clock

HOUR_MS: Final = 3_600_000


class CautiousClock:
    """Every loop that deletes by time calls `timestamp_ms` regularly.

    Shape  report gets one sentence for each jump, and one when the clock trusts the new time
    Units  milliseconds of wall time
    """

    def __init__(self, clock: Clock, *, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._report = report
        self._trusted = self._new = self._distance()
        self._new_since_ms = clock.now_ms()

    def _distance(self) -> int:
        return self._clock.timestamp_ms() - self._clock.now_ms()

    def timestamp_ms(self) -> int:
        """The time against which ages are measured."""
        self._look()
        clock = self._clock
        wall_ms = clock.timestamp_ms()
        return min(clock.now_ms() + self._trusted, wall_ms - clock.ahead_ms)

    def _look(self) -> None:
        distance, now_ms = self._distance(), self._clock.now_ms()
        if abs(distance - self._trusted) <= HOUR_MS:
            if self._new != self._trusted:
                self._report("the wall clock is back at the time before its jump")
            self._trusted = self._new = distance
            return
        if abs(distance - self._new) > HOUR_MS:
            self._new, self._new_since_ms = distance, now_ms
            if distance < self._trusted:
                self._report(f"the wall clock was set back by {(self._trusted - distance) // 1000} s")
            else:
                self._report(
                    f"the wall clock was set ahead by {(distance - self._trusted) // 1000} s; "
                    f"deletion by age ignores the new time for {HOUR_MS // 1000} s"
                )
        elif now_ms - self._new_since_ms >= HOUR_MS:
            if distance > self._trusted:
                self._report("the wall clock has been stable since it was set ahead; deletion by age uses it again")
            self._trusted = self._new = distance
