"""Counters, tallies and histograms, cheap enough for the path of a request.

A counter is an object whose `value` one adds to; a tally is a counter for each of a few things; a histogram puts
integers into powers of two, by one `bit_length`.
Nothing is locked: all of it happens on the event loop. `Metrics.snapshot()` is what a metrics page or a test reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Counter:
    """A number of events or bytes; it only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count `amount` more."""
        self.value += amount


class Tally:
    """How often each of several things happened, as each error of each API.

    Bound  none: only what is few may be a key, never what a peer can make up
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}

    def add(self, *key: str) -> None:
        """Count one more of `key`."""
        self.counts[key] = self.counts.get(key, 0) + 1


class Histogram:
    """How often values of each size came.

    Shape  counts[n] counts the values v with v.bit_length() == n: counts[0] zeros, counts[1] ones, counts[2] 2 to 3,
           counts[3] 4 to 7
    Units  those of the metric's name (`_us`, `_ms`, `_bytes`)
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * 64
        self.total = 0

    def record(self, value: int) -> None:
        """Count one value; it must not be negative."""
        self.counts[value.bit_length()] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> int:
        """An upper bound, at most twice too high, of the value below which `fraction` of all lie.

        0 when there are none.
        """
        wanted = fraction * self.count
        passed = 0
        for bits, count in enumerate(self.counts):
            passed += count
            if count and passed >= wanted:
                return (1 << bits) - 1
        return 0


@dataclass(slots=True)
class Metrics:
    """All metrics of one broker, by name; a name that is new makes its metric."""

    counters: dict[str, Counter] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    gauges: dict[str, Callable[[], int]] = field(default_factory=dict)

    def counter(self, name: str) -> Counter:
        """The counter of that name. Keep it: this is a look-up."""
        return self.counters.setdefault(name, Counter())

    def tally(self, name: str) -> Tally:
        """The tally of that name. Keep it: this is a look-up."""
        return self.tallies.setdefault(name, Tally())

    def histogram(self, name: str) -> Histogram:
        """The histogram of that name. Keep it: this is a look-up."""
        return self.histograms.setdefault(name, Histogram())

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        """Let `read()` give the value of `name` whenever somebody asks."""
        self.gauges[name] = read

    def snapshot(self) -> dict[str, int]:
        """Every value now, by name; a histogram gives its count, its total and two quantiles."""
        values = {name: counter.value for name, counter in self.counters.items()}
        values.update((name, read()) for name, read in self.gauges.items())
        for name, tally in self.tallies.items():
            values.update((".".join((name, *key)), count) for key, count in tally.counts.items())
        for name, histogram in self.histograms.items():
            values[f"{name}.count"] = histogram.count
            values[f"{name}.total"] = histogram.total
            values[f"{name}.p50"] = histogram.quantile(0.5)
            values[f"{name}.p99"] = histogram.quantile(0.99)
        return dict(sorted(values.items()))
