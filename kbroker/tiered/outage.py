"""Whether the store answers: said once when it stops to, and once when everything goes again.

Whoever needs the store notes how its last attempt went. The first that fails begins an outage, and the last one that
succeeds again ends it, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kbroker.runtime.log import logger

events = logger(__name__)


class Outage:
    """See the module's text. Both ends are warnings, so that who reads nothing else reads both."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: set[Hashable] = set()
        self._began_ms = 0

    @property
    def is_on(self) -> bool:
        return bool(self._waiting)

    def failed(self, who: Hashable, *, topic: str, partition: int, error: object) -> None:
        """The store could not do now what `who` wanted, which is tried again."""
        if not self._waiting:
            self._began_ms = self._now_ms()
            events.warning(
                "the tier does not answer, or refuses: copies and deletions wait, and are tried again",
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
                events.warning("the tier answers again", after_ms=self._now_ms() - self._began_ms)

    def forget(self, who: Hashable) -> None:
        """`who` wants nothing any more, which says nothing about the store."""
        self._waiting.discard(who)
