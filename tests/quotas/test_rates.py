"""Rates and token buckets as tables; the expected values are those of Apache Kafka's classes."""

from __future__ import annotations

import pytest

from kbroker.quotas.rates import MAX_INT32, Bucket, SampledRate, Windows

ELEVEN = Windows(11, 1_000)


def test_ten_windows_of_quota_may_be_used_at_once() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(1_000, 0)
    assert rate.wait_ms(100, 0) == 0
    rate.record(1, 0)
    assert rate.wait_ms(100, 0) == 10


def test_the_wait_brings_the_rate_back_to_the_limit() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(3_000, 0)
    assert rate.wait_ms(100, 0) == 20_000
    assert rate.wait_ms(100, 10_999) == 19_001
    assert rate.rate(10_000) == 300


def test_samples_expire_after_all_windows() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(3_000, 0)
    assert rate.wait_ms(100, 10_999) > 0
    assert rate.wait_ms(100, 11_000) == 0
    assert rate.rate(11_000) == 0


def test_a_value_that_is_taken_back_leaves_no_trace() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(500, 0)
    rate.record(9_000, 1_500)
    rate.record(-9_000, 1_500)
    assert rate.rate(10_000) == 50


def test_a_steady_rate_is_measured_with_few_samples() -> None:
    rate = SampledRate(ELEVEN)
    for now_ms in range(0, 60_000, 100):
        rate.record(10, now_ms)
    assert rate.rate(59_900) == pytest.approx(100, rel=0.02)
    assert len(rate._samples) <= 12


@pytest.mark.parametrize("limit", [1e-300, 0.0])
def test_the_longest_wait_fits_the_protocol(limit: float) -> None:
    rate, bucket = SampledRate(ELEVEN), Bucket(ELEVEN)
    rate.record(1, 0)
    bucket.record(1, limit, 0)
    assert rate.wait_ms(limit, 0) == bucket.wait_ms(limit, 0) == MAX_INT32


def test_a_bucket_holds_the_quota_of_all_windows() -> None:
    bucket = Bucket(ELEVEN)
    assert bucket.tokens(5, 0) == 55
    bucket.record(60, 5, 0)
    assert (bucket.tokens(5, 0), bucket.wait_ms(5, 0)) == (-5, 1_000)
    assert (bucket.tokens(5, 1_000), bucket.wait_ms(5, 1_000)) == (0, 0)
    assert bucket.tokens(5, 3_600_000) == 55
