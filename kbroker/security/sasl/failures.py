"""Slows down clients that guess passwords, by address, without slowing down others at the same address much.

The answer to a failed login is delayed; after FREE_FAILURES each further failure doubles the delay. An address may fail
ten times in a second; further attempts wait before they are checked. Successful logins do not count, so that one client
with a wrong password does not lock out the others on its host. Clients on the broker's machine only get the first
delay, because test suites make many failures on purpose.

Source  row X1 of the fault list; connection.failed.authentication.delay.ms of Apache Kafka
"""

from __future__ import annotations

from typing import Final

from kbroker.config.listeners import counted_address, is_loopback

MAX_ADDRESSES: Final = 10_000
FREE_FAILURES: Final = 5
FORGOTTEN_AFTER_MS: Final = 60_000
FAILURE_COSTS_MS: Final = 100
BURST_MS: Final = 1_000


class FailedLogins:
    """The recent failures of each address, or IPv6 network (`counted_address`).

    Bound  MAX_ADDRESSES; beyond that the oldest failure is forgotten
    Units  all times in milliseconds of monotonic time
    """

    def __init__(self, *, delay_ms: int = 100, max_delay_ms: int = 10_000) -> None:
        self.delay_ms = delay_ms
        self.max_delay_ms = max_delay_ms
        self._of: dict[str, tuple[int, int, int]] = {}  # failures, time of the last one, time until they are paid

    def __len__(self) -> int:
        """How many addresses have failures."""
        return len(self._of)

    def pause_ms(self, address: str, now_ms: int) -> int:
        """How long an attempt waits before it is checked."""
        found = self._of.get(counted_address(address))
        return 0 if found is None else max(0, found[2] - BURST_MS - now_ms)

    def note(self, address: str, now_ms: int) -> int:
        """Note a failure; return how long its answer waits."""
        if is_loopback(address):
            return self.delay_ms
        address = counted_address(address)
        failures, last_ms, paid_ms = self._of.pop(address, (0, now_ms, now_ms))
        failures = 1 if now_ms - last_ms >= FORGOTTEN_AFTER_MS else failures + 1
        if len(self._of) >= MAX_ADDRESSES:
            del self._of[next(iter(self._of))]
        self._of[address] = failures, now_ms, max(paid_ms, now_ms) + FAILURE_COSTS_MS
        doubled = self.delay_ms << min(max(0, failures - FREE_FAILURES), 20)
        return min(doubled, max(self.delay_ms, self.max_delay_ms))
