"""Counters, tallies and histograms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.metrics import Histogram, Metrics


def test_a_name_stands_for_one_metric() -> None:
    metrics = Metrics()
    metrics.counter("requests").add()
    metrics.counter("requests").add(2)
    assert metrics.counters["requests"].value == 3
    assert metrics.histogram("flush_us") is metrics.histogram("flush_us")


@given(st.integers(0, 2**63 - 1), st.integers(0, 63))
def test_a_value_is_counted_by_its_bit_length(value: int, bits: int) -> None:
    histogram = Histogram()
    histogram.record(value)
    assert histogram.total == value
    assert histogram.counts[bits] == (2**bits // 2 <= value < 2**bits)


def test_a_tally_counts_each_key_separately() -> None:
    metrics = Metrics()
    metrics.tally("errors").add("Fetch", "NOT_LEADER_OR_FOLLOWER")
    metrics.tally("errors").add("Fetch", "NOT_LEADER_OR_FOLLOWER")
    metrics.tally("errors").add("Produce", "INVALID_RECORD")
    assert metrics.tallies["errors"].counts == {
        ("Fetch", "NOT_LEADER_OR_FOLLOWER"): 2,
        ("Produce", "INVALID_RECORD"): 1,
    }


def test_recent_counts_fade_only_when_new_values_come() -> None:
    histogram = Histogram()
    assert sum(histogram.recent(0)) == 0
    for _ in range(100):
        histogram.record(5)
    assert histogram.recent(1_000)[3] == 100
    assert histogram.recent(10**9)[3] == 100
    histogram.record(0)
    later = 1_000 + 300_000
    assert histogram.recent(later)[:4] == [1, 0, 0, pytest.approx(1.1, abs=0.1)]
    assert histogram.counts[:4] == [1, 0, 0, 100]
