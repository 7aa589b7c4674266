"""Compares the wall clock of this machine with the active controller's.

The controllers write the time into each batch of the metadata log. A broker that is caught up gets a batch within a
second, so a large difference means that one of the two clocks is wrong. Nothing in the cluster's protocols depends on
it, but a broker with a wrong clock refuses records of clients with right ones, and deletes records too late.
"""

from __future__ import annotations

from typing import Final

from kbroker.runtime.event_log import get_logger
from kbroker.runtime.ports import Clock

ALLOWED_MS: Final = 3_600_000
"""As message.timestamp.after.max.ms: beyond it records are refused."""

logger = get_logger(__name__)


class ClockCheck:
    """Logs when the difference of the clocks becomes too large, and when it is small again.

    It tells the clock how far it is ahead, so that deletion by age does not believe it (`CautiousClock`).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_wrong = False

    def compare(self, own_ms: int, controllers_ms: int) -> None:
        """Compare two wall times that were read at nearly the same moment."""
        ahead_ms = own_ms - controllers_ms
        self._clock.ahead_ms = ahead_ms if ahead_ms > ALLOWED_MS else 0
        if (abs(ahead_ms) > ALLOWED_MS) == self._is_wrong:
            return
        self._is_wrong = not self._is_wrong
        if self._is_wrong:
            logger.warning(
                "the clocks of this machine and of the active controller differ: set the wrong one, for example by "
                "NTP; until then records may be refused (INVALID_TIMESTAMP), or deleted too late",
                hours_ahead=ahead_ms // 3_600_000,
            )
        else:
            logger.info("the clocks of this machine and of the active controller agree again")
