"""Waits between attempts, for everything that is retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.runtime.net_ports import Env, Listener, Stream

ACCEPT_DELAY_MS: Final = 100


class BackOff:
    """Delays that double from one failure to the next, up to a limit that may change.

    Units  milliseconds
    """

    __slots__ = ("_delay_ms", "_first_ms")

    def __init__(self, first_ms: int) -> None:
        self._first_ms = self._delay_ms = first_ms

    def reset(self) -> None:
        """Start over after a success."""
        self._delay_ms = self._first_ms

    def next_ms(self, limit_ms: int) -> int:
        """The delay after a failure."""
        delay_ms = min(self._delay_ms, limit_ms)
        self._delay_ms = max(2 * delay_ms, self._first_ms)
        return delay_ms


async def accept(listener: Listener, env: Env, report: Callable[[OSError], None]) -> Stream:
    """The next connection. If the system cannot accept one, for lack of file descriptors for example, the error is
    reported and accepting is retried.
    """
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            report(error)
            await env.sleep_ms(ACCEPT_DELAY_MS)
