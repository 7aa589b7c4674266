"""Says on standard error how far a command is, and what it waits for.

The counter is one line that is overwritten. It appears only on a terminal, and not if standard output is a terminal as
well, because records are printed there. What the command waits for is said in a line of its own: on a terminal after a
second; elsewhere only trouble, such as a partition without a leader, so that the log of a job that hangs says why.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from kbroker.cli._say import note

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

EACH_MS: Final = 500
WAIT_MS: Final = 1_000
TROUBLE_MS: Final = 3_000
_MB: Final = 1_000_000
_ERASE: Final = "\r\x1b[K"


class Progress:
    """A context manager, which prints a summary if it has shown the counter."""

    def __init__(self, command: str, done: str, cluster: Cluster) -> None:
        self._command, self._done = command, done
        self._now_ms = cluster.env.now_ms
        self._is_terminal = sys.stderr.isatty()
        self._is_counting = self._is_terminal and not sys.stdout.isatty()
        self._records = self._bytes = 0
        self._began_ms = self._shown_ms = self._now_ms()
        self._waits_since_ms: float | None = None
        self._said: set[str] = set()
        cluster.waits_for = self.waits_for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._is_counting and self._records:
            seconds = (self._now_ms() - self._began_ms) / 1000
            self._erase()
            note(f"{self._done} {self._counted()} in {seconds:.1f} s")

    def add(self, records: int, size_bytes: int) -> None:
        """Count records that have arrived."""
        self._waits_since_ms = None
        self._records += records
        self._bytes += size_bytes
        if self._is_counting and (now := self._now_ms()) - self._shown_ms >= EACH_MS:
            self._shown_ms = now
            rate = self._records * 1000 / (now - self._began_ms)
            sys.stderr.write(f"{_ERASE}{self._counted()}, {rate:,.0f} records/s")
            sys.stderr.flush()

    def waits_for(self, what: str, *, is_trouble: bool = True) -> None:
        """Say once what the command waits for, if it has waited for some time."""
        now = self._now_ms()
        if self._waits_since_ms is None:
            self._waits_since_ms = now
        wait_ms = WAIT_MS if self._is_terminal else TROUBLE_MS
        if now - self._waits_since_ms < wait_ms or what in self._said or not (is_trouble or self._is_terminal):
            return
        self._said.add(what)
        if self._is_counting:
            self._erase()
        note(f"kbroker {self._command}: waiting: {what}")

    def _counted(self) -> str:
        return f"{self._records:,} records, {self._bytes / _MB:,.1f} MB"

    def _erase(self) -> None:
        sys.stderr.write(_ERASE)
