"""Byte budgets: limits on the memory that many holders use together.

Theory of operation: a holder makes a `Claim` and takes bytes before it allocates them. A claim that does not fit waits,
first come, first served. A claim may grow while others wait. If all claims that hold bytes wait for more, none of them
could continue, so the first in line gets its bytes even beyond the bound (Kafka's SimpleMemoryPool is lenient in the
same way: it admits a request while any memory is left). Therefore a holder that has to wait asks for all bytes that it
still needs, and never waits again. So the bytes held are at most max_bytes plus the request of one holder.

A `SplitBudget` reserves one half for small claims, so that large claims cannot delay them.

A reply cannot wait: it is already in memory when its size is known. The first bytes of a request cannot wait either:
they are received before its size is known. An `EvictingBudget` counts memory that is already in use. Beyond its bound
it closes the connections whose last progress is longest ago.

Source: SimpleMemoryPool of Apache Kafka 4.3.1 (KIP-72)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

_SHARE: Final = 4


class ByteBudget:
    """A budget whose claims wait; see the module's docstring.

    Shape  a negative max_bytes means no bound
    Units  used_bytes is the total of all claims; it can exceed max_bytes
    """

    __slots__ = ("_active", "_waiting", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._active = 0  # claims that hold bytes and do not wait
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
    """One holder's share of a budget. Release it when the memory is freed."""

    __slots__ = ("budget", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.held_bytes = 0

    def try_take(self, size: int) -> bool:
        """Take `size` more bytes if they fit and no claim is waiting."""
        budget = self.budget
        if budget._waiting or not budget._fits(size):
            return False
        budget._give(self, size)
        return True

    async def take(self, size: int) -> None:
        """Take `size` more bytes; wait in line if they do not fit. Ask for all bytes that the holder still needs."""
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
        """Give all bytes back. Idempotent. Do not call it while `take` waits."""
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
        """A claim that holds nothing yet; `size` is the total that it will take."""
        return (self.small if size <= self.small_bytes else self.large).claim()

    @property
    def used_bytes(self) -> int:
        """The total of all claims."""
        return self.small.used_bytes + self.large.used_bytes

    def __len__(self) -> int:
        """How many claims wait."""
        return len(self.small) + len(self.large)


class EvictingBudget:
    """A budget that evicts claims; see the module's docstring.

    Shape  a negative max_bytes means no bound; `evicted` counts the connections closed to free memory
    Bound  max_bytes, plus the bytes of holders that may not be evicted
    """

    __slots__ = ("_claims", "evicted", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = self.evicted = 0
        self._claims: dict[EvictableClaim, None] = {}  # claims that hold bytes, in the order of their last progress


class EvictableClaim:
    """The bytes of one connection.

    Shape  is_evictable: the connection waits for its client only; hang_up closes it
    """

    __slots__ = ("_budget", "_hang_up", "held_bytes", "is_evictable")

    def __init__(self, budget: EvictingBudget, hang_up: Callable[[], None]) -> None:
        self.held_bytes = 0
        self.is_evictable = False
        self._budget = budget
        self._hang_up = hang_up

    def share(self, wanted: int) -> int:
        """Take up to `wanted` bytes, perhaps none, for a reply that can be shorter; return how many.

        Such replies use at most half of the budget. Each gets at most a fraction of the free bytes, so that some remain
        for the next.
        """
        budget = self._budget
        taken = max(0, min(wanted, (budget.max_bytes // 2 - budget.used_bytes) // _SHARE))
        self.take(taken)
        return taken

    def take(self, size: int) -> None:
        """Take `size` more bytes; a negative size gives bytes back. May close other connections."""
        budget = self._budget
        self.held_bytes += size
        budget.used_bytes += size
        if self.held_bytes:
            budget._claims.setdefault(self)
        if 0 <= budget.max_bytes < budget.used_bytes:
            self._make_room()

    def try_take(self, size: int) -> bool:
        """The same; always succeeds."""
        self.take(size)
        return True

    def release(self) -> None:
        """Give all bytes back. Idempotent."""
        if self.held_bytes:
            self._budget.used_bytes -= self.held_bytes
            self.held_bytes = 0
        self._budget._claims.pop(self, None)

    def note_progress(self) -> None:
        """Note that the client has sent or accepted bytes."""
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
