"""Counters and histograms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.metrics import Histogram, Metrics


def test_a_name_stands_for_one_metric() -> None:
    metrics = Metrics()
    metrics.counter("requests").add()
    metrics.counter("requests").add(2)
    metrics.histogram("flush_us").record(5)
    metrics.gauge("open", lambda: 7)
    assert metrics.snapshot() == {
        "flush_us.count": 1,
        "flush_us.p50": 7,
        "flush_us.p99": 7,
        "flush_us.total": 5,
        "open": 7,
        "requests": 3,
    }


@given(st.lists(st.integers(0, 2**62), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_at_most_twice_too_high(values: list[int], fraction: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = next(value for rank, value in enumerate(sorted(values), start=1) if rank >= fraction * len(values))
    assert exact <= histogram.quantile(fraction) <= max(2 * exact, 0)
    assert (histogram.count, histogram.total) == (len(values), sum(values))


def test_an_empty_histogram_has_quantile_0() -> None:
    assert Histogram().quantile(0.99) == 0


def test_a_tally_counts_each_key_separately() -> None:
    metrics = Metrics()
    metrics.tally("errors").add("Fetch", "NOT_LEADER_OR_FOLLOWER")
    metrics.tally("errors").add("Fetch", "NOT_LEADER_OR_FOLLOWER")
    metrics.tally("errors").add("Produce", "INVALID_RECORD")
    assert metrics.snapshot() == {"errors.Fetch.NOT_LEADER_OR_FOLLOWER": 2, "errors.Produce.INVALID_RECORD": 1}
