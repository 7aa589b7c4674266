"""The nodes that follow the metadata log: how far they have read it, and when they last had all of it.

A fetch offset says what its sender has. An observer has caught up if its offset is the log's end now, or the end at the
time of its previous fetch, as for followers of any partition.

Source: Kafka's LeaderState.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

SESSION_MS: Final = 300_000
"""An observer that has not fetched for so long is forgotten, as in Kafka."""

MAX_OBSERVERS: Final = 1_000
"""If there are more, the one that fetched first is forgotten."""


class ObserverKey(NamedTuple):
    """A node, and the directory of its metadata log."""

    id: int
    directory_id: UUID


@dataclass(slots=True, eq=False)
class Observer:
    """The progress of one observer; end_offset is exclusive, times are wall time."""

    end_offset: int
    fetched_ms: int
    caught_up_ms: int = -1
    end_at_fetch: int = -1


class QuorumObservers:
    """The observers of the metadata log, by key. They are not in the log: a new controller learns them from fetches."""

    def __init__(self) -> None:
        self._observers: dict[ObserverKey, Observer] = {}

    def on_fetch(self, key: ObserverKey, offset: int, *, log_end_offset: int, timestamp_ms: int) -> None:
        """Note a fetch from this offset."""
        observer = self._observers.pop(key, None) or Observer(offset, timestamp_ms)
        if offset >= log_end_offset:
            observer.caught_up_ms = max(observer.caught_up_ms, timestamp_ms)
        elif offset >= observer.end_at_fetch > 0:
            observer.caught_up_ms = max(observer.caught_up_ms, observer.fetched_ms)
        observer.end_offset = offset
        observer.fetched_ms = max(observer.fetched_ms, timestamp_ms)
        observer.end_at_fetch = log_end_offset
        self._observers[key] = observer  # ordered by the time of the last fetch
        if len(self._observers) > MAX_OBSERVERS:
            del self._observers[next(iter(self._observers))]

    def active(self, timestamp_ms: int) -> dict[ObserverKey, Observer]:
        """The observers that fetched recently."""
        return {key: one for key, one in self._observers.items() if timestamp_ms - one.fetched_ms < SESSION_MS}
