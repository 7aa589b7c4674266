"""Token buckets and rate-limited log lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.limits import MAX_SUBJECTS, RateLimitedLog, TokenBucket


def test_a_full_bucket_allows_its_burst_then_requires_a_pause() -> None:
    bucket = TokenBucket(rate=100, burst=50, now_ms=1_000)
    assert bucket.take(50, now_ms=1_000) == 0
    assert bucket.take(10, now_ms=1_000) == 100
    assert bucket.take(1, now_ms=1_100) == 10


def test_a_bucket_fills_no_higher_than_its_burst() -> None:
    bucket = TokenBucket(rate=100, burst=50, now_ms=0)
    assert bucket.take(51, now_ms=3_600_000) == 10


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300)), min_size=1))
def test_pausing_callers_stay_within_burst_and_rate(takings: list[tuple[int, int]]) -> None:
    bucket, now_ms, taken = TokenBucket(rate=100, burst=50, now_ms=0), 0, 0
    for amount, idle_ms in takings:
        # The pauses so far cover all earlier takes.
        assert taken <= 50 + 100 * now_ms / 1000 + 1e-6
        now_ms += bucket.take(amount, now_ms=now_ms) + idle_ms
        taken += amount


def test_each_subject_gets_one_line_per_interval_with_a_count() -> None:
    limit = RateLimitedLog(interval_ms=1_000)
    assert limit.admit("10.0.0.1", now_ms=0) == 0
    assert [limit.admit("10.0.0.1", now_ms=now_ms) for now_ms in (1, 500, 999)] == [None] * 3
    assert limit.admit("10.0.0.2", now_ms=999) == 0
    assert limit.admit("10.0.0.1", now_ms=1_000) == 3
    assert limit.admit("10.0.0.1", now_ms=2_000) == 0


def test_the_subjects_remembered_are_bounded() -> None:
    limit = RateLimitedLog(interval_ms=1_000)
    for subject in range(MAX_SUBJECTS + 1):
        assert limit.admit(subject, now_ms=0) == 0
    assert limit.admit(MAX_SUBJECTS, now_ms=1) is None
    assert limit.admit(0, now_ms=1) == 0, "the oldest subjects were evicted"
