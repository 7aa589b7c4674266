"""Counters, tallies and histograms that are cheap enough for the request path.

A counter is an object with a `value`; a tally has a counter for each of a few keys; a histogram sorts integers into
powers of two with one `bit_length`.
There are no locks: all updates happen on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import Final

DECAY_PER_MS: Final = 0.015 / 1_000
"""How fast the weight of a value falls in `Histogram.recent`: to 1% in five minutes, as in Kafka's histograms."""


class Counter:
    """A number of events or bytes; it only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count `amount` more."""
        self.value += amount


class Tally:
    """Event counts by key, such as errors by API and code.

    Bound  none: keys must come from a small set, never from a peer
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}

    def add(self, *key: str) -> None:
        """Count one more of `key`."""
        self.counts[key] = self.counts.get(key, 0) + 1


class Histogram:
    """The distribution of values, in powers of two.

    Shape  counts[n] counts the values v with v.bit_length() == n: counts[0] zeros, counts[1] ones, counts[2] 2 to 3,
           counts[3] 4 to 7
    Units  that in the metric's name (`_us`, `_ms`, `_bytes`)
    """

    __slots__ = ("_at_ms", "_recent", "_seen", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * 64
        self.total = 0
        self._at_ms = 0
        self._recent: list[float] = []
        self._seen: list[int] = []

    def record(self, value: int) -> None:
        """Count one value; it must not be negative."""
        self.counts[value.bit_length()] += 1
        self.total += value

    def recent(self, now_ms: int) -> list[float]:
        """The counts, in which the newest values have the most weight; monotonic time. Without new values the
        distribution stays, as in Kafka. Values that came between two calls have the same weight.
        """
        if self.counts != self._seen:
            counts = self.counts.copy()
            if self._recent:
                keep = exp(-DECAY_PER_MS * (now_ms - self._at_ms))
                pairs = zip(self._recent, counts, self._seen, strict=True)
                self._recent = [weight * keep + (count - seen) for weight, count, seen in pairs]
            else:
                self._recent = [float(count) for count in counts]
            self._seen, self._at_ms = counts, now_ms
        return self._recent


@dataclass(slots=True, eq=False)
class Metrics:
    """All metrics of one broker, by name. The first use of a name creates its metric."""

    counters: dict[str, Counter] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def counter(self, name: str) -> Counter:
        """The counter with this name. Callers keep it, to avoid the look-up."""
        return self.counters.setdefault(name, Counter())

    def tally(self, name: str) -> Tally:
        """The tally with this name. Callers keep it, to avoid the look-up."""
        return self.tallies.setdefault(name, Tally())

    def histogram(self, name: str) -> Histogram:
        """The histogram with this name. Callers keep it, to avoid the look-up."""
        return self.histograms.setdefault(name, Histogram())
