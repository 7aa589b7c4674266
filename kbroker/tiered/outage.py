"""Whether the store answers: logged once when an outage starts, and once when it ends.

Every user of the store reports the result of its last attempt. The first failure starts an outage. The outage ends when
the last failed user succeeds, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kbroker.runtime.event_log import get_logger

logger = get_logger(__name__)


class Outage:
    """See the module's docstring. Start and end are both warnings, so a log filtered to warnings shows both."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: set[Hashable] = set()
        self._began_ms = 0

    def failed(self, who: Hashable, *, topic: str, partition: int, error: object) -> None:
        """An operation of `who` failed; `who` will retry it."""
        if not self._waiting:
            self._began_ms = self._now_ms()
            logger.warning(
                "the tier does not answer or refuses requests; copies and deletions wait and will be retried",
                topic=topic,
                partition=partition,
                error=error,
            )
        self._waiting.add(who)

    def ended(self, who: Hashable) -> None:
        """The store answered `who`."""
        if who in self._waiting:
            self._waiting.discard(who)
            if not self._waiting:
                logger.warning("the tier answers again", after_ms=self._now_ms() - self._began_ms)

    def forget(self, who: Hashable) -> None:
        """Drop `who`, which needs the store no more; this says nothing about the store."""
        self._waiting.discard(who)
