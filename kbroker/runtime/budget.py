"""Budgets of bytes: what many holders may have in memory together.

Theory of operation: a holder makes a `Claim` and takes what it is about to allocate. What does not fit waits, first
come, first served. A claim may grow while others wait; if all claims that hold something wait for more, none of them
could ever go on, so then the first in line gets what it asks for, however much that is (Kafka's SimpleMemoryPool is
lenient in the same way: a request is admitted while anything is left). A holder that has to wait therefore asks for all
that it still needs, and never waits again. So the bytes held are at most max_bytes and what one holder asks for.

A `SplitBudget` keeps one half for small claims, so that large ones cannot keep them waiting.

An answer cannot wait: when its size is known, it is made; nor can the first bytes of a request, which are received
before anything is known of it. An `EvictingBudget` counts what is in memory already. Beyond its bound it hangs up on
the connections that have moved nothing for longest.

Source: SimpleMemoryPool of Apache Kafka 4.3.1 (KIP-72)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

_SHARE: Final = 4


class ByteBudget:
    """See the module's text.

    Shape  a negative max_bytes is no bound
    Units  used_bytes are those of all claims; it may be more than max_bytes
    """

    __slots__ = ("_active", "_waiting", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._active = 0  # claims that hold something and do not wait
        self._waiting: deque[tuple[Claim, int, trio.Event]] = deque()

    def __len__(self) -> int:
        """How many claims wait."""
        return len(self._waiting)

    def claim(self) -> Claim:
        """A claim that holds nothing yet."""
        return Claim(self)

    def _fits(self, size: int) -> bool:
        return self.max_bytes < 0 or self.used_bytes + size <= self.max_bytes

    def _give(self, claim: Claim, size: int) -> None:
        self._active += not claim.held_bytes and size > 0
        claim.held_bytes += size
        self.used_bytes += size

    def _grant(self) -> None:
        while self._waiting and (not self._active or self._fits(self._waiting[0][1])):
            claim, size, granted = self._waiting.popleft()
            self._active += claim.held_bytes > 0
            self._give(claim, size)
            granted.set()


class Claim:
    """What one holder has of a budget. Release it when the memory is free."""

    __slots__ = ("budget", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.held_bytes = 0

    def try_take(self, size: int) -> bool:
        """Take `size` more bytes if they fit and nobody is in line."""
        budget = self.budget
        if budget._waiting or not budget._fits(size):
            return False
        budget._give(self, size)
        return True

    async def take(self, size: int) -> None:
        """Take `size` more bytes; wait in line if they do not fit. `size` should be all that the holder needs."""
        budget = self.budget
        granted = trio.Event()
        entry = (self, size, granted)
        budget._waiting.append(entry)
        budget._active -= self.held_bytes > 0
        budget._grant()
        try:
            await granted.wait()
        except BaseException:
            if not granted.is_set():
                budget._waiting.remove(entry)
                budget._active += self.held_bytes > 0
                budget._grant()
            raise

    def release(self) -> None:
        """Give everything back; harmless when repeated. Not while it waits."""
        if self.held_bytes:
            budget = self.budget
            budget._active -= 1
            budget.used_bytes -= self.held_bytes
            self.held_bytes = 0
            budget._grant()


class SplitBudget:
    """Two budgets of half the bytes each: for claims of up to `small_bytes`, and for larger ones."""

    __slots__ = ("large", "small", "small_bytes")

    def __init__(self, max_bytes: int, *, small_bytes: int) -> None:
        half = max_bytes // 2 if max_bytes >= 0 else -1
        self.small_bytes = small_bytes
        self.small = ByteBudget(half)
        self.large = ByteBudget(half)

    def claim(self, size: int) -> Claim:
        """A claim that holds nothing yet, and may take `size` bytes in the end."""
        return (self.small if size <= self.small_bytes else self.large).claim()

    @property
    def used_bytes(self) -> int:
        """Those of all claims."""
        return self.small.used_bytes + self.large.used_bytes

    def __len__(self) -> int:
        """How many claims wait."""
        return len(self.small) + len(self.large)


class EvictingBudget:
    """See the module's text.

    Shape  a negative max_bytes is no bound; `evicted` counts the connections that were ended to make room
    Bound  max_bytes, and what holders have that may not be evicted
    """

    __slots__ = ("_claims", "evicted", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = self.evicted = 0
        self._claims: dict[
            EvictableClaim, None
        ] = {}  # those that hold something, in the order in which they last moved


class EvictableClaim:
    """What one connection holds.

    Shape  is_evictable: the connection waits for its client, and for nothing else; hang_up ends it
    """

    __slots__ = ("_budget", "_hang_up", "held_bytes", "is_evictable")

    def __init__(self, budget: EvictingBudget, hang_up: Callable[[], None]) -> None:
        self.held_bytes = 0
        self.is_evictable = False
        self._budget = budget
        self._hang_up = hang_up

    def share(self, wanted: int) -> int:
        """Take `wanted` bytes, or fewer, perhaps none, for an answer that can be shorter; how many.

        Such answers fill one half. Each gets at most a part of what is free, so that something is left for the next.
        """
        budget = self._budget
        taken = max(0, min(wanted, (budget.max_bytes // 2 - budget.used_bytes) // _SHARE))
        self.take(taken)
        return taken

    def take(self, size: int) -> None:
        """Take `size` bytes, or give some back if it is negative. May hang up on other connections."""
        budget = self._budget
        self.held_bytes += size
        budget.used_bytes += size
        if self.held_bytes:
            budget._claims.setdefault(self)
        if 0 <= budget.max_bytes < budget.used_bytes:
            self._make_room()

    def try_take(self, size: int) -> bool:
        """The same; there is always room."""
        self.take(size)
        return True

    def release(self) -> None:
        """Give everything back; harmless when repeated."""
        if self.held_bytes:
            self._budget.used_bytes -= self.held_bytes
            self.held_bytes = 0
        self._budget._claims.pop(self, None)

    def note_progress(self) -> None:
        """The client has sent or taken something."""
        if self.held_bytes:
            claims = self._budget._claims
            del claims[self]
            claims[self] = None

    def _make_room(self) -> None:
        budget = self._budget
        for claim in [one for one in budget._claims if one is not self and one.is_evictable]:
            claim.release()
            budget.evicted += 1
            claim._hang_up()
            if budget.used_bytes <= budget.max_bytes:
                return
