"""The wall clock as those see it who destroy what is old: a jump ahead makes nothing old at once.

Theory of operation: the distance between the wall clock and the monotonic clock is constant but for small corrections.
When it is found changed by more than an hour, somebody or something has set the wall clock, and nobody here can say
whether rightly: a broker that believes a clock that is a year ahead deletes everything it has. So the time from before
goes on, counted by the monotonic clock, until the new one has stood for an hour; whoever set it wrongly has so long to
set it right, and finds everything in its place. In a cluster the controller would be asked; here it is this process.

A jump back is believed at once, since it only makes things younger. So what is told is never ahead of the wall clock.

A machine that slept looks like one whose clock was set ahead: an hour later than usual old records go.

Source: row T2 of the list of faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.runtime.ports import Clock

HOUR_MS: Final = 3_600_000


class CautiousClock:
    """Asked by every loop that deletes by time, again and again.

    Shape  report is told in one sentence of each jump, and when it is believed
    Units  milliseconds of wall time
    """

    def __init__(
        self,
        clock: Clock,
        *,
        report: Callable[[str], None],
        believed_jump_ms: int = HOUR_MS,
        believed_after_ms: int = HOUR_MS,
    ) -> None:
        self._clock = clock
        self._report = report
        self._believed_jump_ms = believed_jump_ms
        self._believed_after_ms = believed_after_ms
        self._trusted = self._new = self._distance()
        self._new_since_ms = clock.now_ms()

    def _distance(self) -> int:
        return self._clock.timestamp_ms() - self._clock.now_ms()

    def timestamp_ms(self) -> int:
        """The time by which something may be called old."""
        self._look()
        return min(self._clock.now_ms() + self._trusted, self._clock.timestamp_ms())

    def _look(self) -> None:
        distance, now_ms = self._distance(), self._clock.now_ms()
        if abs(distance - self._trusted) <= self._believed_jump_ms:
            if self._new != self._trusted:
                self._report("the wall clock is where it was before its jump")
            self._trusted = self._new = distance
            return
        if abs(distance - self._new) > self._believed_jump_ms:
            self._new, self._new_since_ms = distance, now_ms
            if distance < self._trusted:
                self._report(f"the wall clock was set back by {(self._trusted - distance) // 1000} s")
            else:
                self._report(
                    f"the wall clock was set ahead by {(distance - self._trusted) // 1000} s; "
                    f"nothing is deleted by the new time for {self._believed_after_ms // 1000} s"
                )
        elif now_ms - self._new_since_ms >= self._believed_after_ms:
            if distance > self._trusted:
                self._report("the wall clock has stood since it was set ahead; records are deleted by its time again")
            self._trusted = self._new = distance
