"""The connections that have not authenticated yet, and which of them makes room for another one.

Theory of operation: an honest client authenticates within milliseconds, so the oldest newcomers are the most
suspicious. But an attacker that connects again and again always has the youngest ones. So the first to make room is
the oldest newcomer of the address with most newcomers: an address that floods the broker closes its own connections.

No operation looks at all newcomers, because a flood causes thousands of them per second. Level n holds the addresses
with more than n newcomers, so each connection that comes or goes changes one level, and the last level holds the
addresses with most newcomers. In each level the addresses are in the order in which they reached it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True, eq=False)
class Newcomers(Generic[C]):
    """The connections of some listeners from their accept until they are authenticated or closed.

    Shape  C is a connection; an address is what limits count as one client (`counted_address`); times of accept are
           in milliseconds
    """

    _accepted: OrderedDict[C, tuple[str, int]] = field(default_factory=OrderedDict)
    _by_address: dict[str, OrderedDict[C, None]] = field(default_factory=dict)
    _levels: list[OrderedDict[str, None]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._accepted)

    def add(self, connection: C, address: str, now_ms: int) -> None:
        """Add a connection that is accepted now."""
        of_address = self._by_address.setdefault(address, OrderedDict())
        if len(of_address) == len(self._levels):
            self._levels.append(OrderedDict())
        self._levels[len(of_address)][address] = None
        of_address[connection] = None
        self._accepted[connection] = address, now_ms

    def discard(self, connection: C) -> None:
        """Remove a connection that is authenticated or closed; do nothing if it has been removed before."""
        if connection not in self._accepted:
            return
        address, _ = self._accepted.pop(connection)
        of_address = self._by_address[address]
        del of_address[connection]
        if not of_address:
            del self._by_address[address]
        del self._levels[len(of_address)][address]
        if not self._levels[-1]:
            self._levels.pop()

    def oldest_ms(self) -> float:
        """When the oldest one was accepted, infinity if there is none."""
        return next((accepted_ms for _, accepted_ms in self._accepted.values()), math.inf)

    def suspect(self, *, accepted_by_ms: float = math.inf) -> C | None:
        """The one to close first among those that were accepted by this time, None if there is none.

        It is the oldest one of the address with most newcomers. Of several such addresses, the one that has had so many
        for the longest time is chosen. If even its oldest one was accepted later, the oldest one of all addresses is
        returned. Otherwise an address whose many connections are all young would protect the old ones of others.
        """
        if self.oldest_ms() > accepted_by_ms or not self._levels:
            return None
        of_most = next(iter(self._by_address[next(iter(self._levels[-1]))]))
        _, accepted_ms = self._accepted[of_most]
        return of_most if accepted_ms <= accepted_by_ms else next(iter(self._accepted))
