"""Why segments are still local: the rules are those of retention, and the text names the cause."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import judge, local_limits, plan_retention
from kbroker.tiered.kept import Kept, KeptSegment, TierView, why_kept

NOW = 1_000_000


class Local(NamedTuple):
    base_offset: int
    size: int


SEGMENTS = [Local(0, 100), Local(10, 100), Local(20, 100), Local(30, 100)]


def explain(
    config: LogConfig,
    tier: TierView,
    *,
    segments: list[Local] = SEGMENTS,
    log_start: int = 0,
    end: int = 40,
    stable: int | None = None,
    ages: list[int] | None = None,
) -> list[KeptSegment]:
    timestamps = [NOW - age for age in (ages or [0] * len(segments))]
    verdicts = judge(
        segments,
        largest_timestamp=timestamps.__getitem__,
        limits=local_limits(config, is_copied=tier.is_copied),
        log_start_offset=log_start,
        log_end_offset=end,
        high_watermark=end,
        timestamp_ms=NOW,
        waits_for_copy=tier.is_copied,
        highest_offset_in_remote_storage=tier.highest_offset_in_remote_storage if tier.is_tiered else None,
    )
    return why_kept(verdicts, config, tier, high_watermark=end, last_stable_offset=end if stable is None else stable)


def whys(explained: list[KeptSegment]) -> list[Kept]:
    return [one.why for one in explained]


TIERED = LogConfig(remote_storage_enable=True, local_retention_bytes=0, local_retention_ms=-1, retention_ms=-1)


def test_copied_segments_are_due_past_the_local_limit() -> None:
    explained = explain(TIERED, TierView(True, True, 19))
    assert whys(explained) == [Kept.DUE, Kept.DUE, Kept.COPY_PENDING, Kept.ACTIVE]
    assert [one.verdict.is_copied for one in explained] == [True, True, False, False]
    assert "local.retention.bytes=0" in explained[0].text
    assert "10 offsets before its end" in explained[2].text


def test_a_failed_copy_is_reported_with_its_error() -> None:
    (_, second, *_) = explain(TIERED, TierView(True, True, 9, last_error="the bucket is gone"))
    assert second.why is Kept.COPY_PENDING
    assert second.text.endswith("the last copy failed: the bucket is gone")


def test_a_copy_delayed_by_the_quota_names_the_setting() -> None:
    (_, second, *_) = explain(TIERED, TierView(True, True, 9, waits_for_quota=True))
    assert second.why is Kept.COPY_PENDING
    assert second.text.endswith("copies are delayed by the quota remote.log.manager.copy.max.bytes.per.second")


def test_nothing_is_due_before_the_metadata_are_read() -> None:
    assert whys(explain(TIERED, TierView(True, True, None)))[:3] == [Kept.UNKNOWN] * 3


def test_an_open_transaction_holds_copies_back() -> None:
    explained = explain(TIERED, TierView(True, True, 9), stable=15)
    assert whys(explained) == [Kept.DUE, Kept.UNSTABLE, Kept.UNSTABLE, Kept.ACTIVE]
    assert "15" in explained[1].text


def test_local_retention_does_not_wait_with_copying_disabled() -> None:
    """KAFKA-17236: with copying disabled, local deletion still waited for an upload."""
    config = LogConfig(remote_storage_enable=True, remote_log_copy_disable=True, retention_bytes=150, retention_ms=-1)
    explained = explain(config, TierView(True, False, -1))
    assert whys(explained) == [Kept.DUE, Kept.DUE, Kept.COPY_DISABLED, Kept.ACTIVE]
    assert "remote.log.copy.disable" in explained[2].text


def test_a_copied_segment_within_local_retention_has_a_due_time() -> None:
    config = LogConfig(remote_storage_enable=True, local_retention_ms=5_000, retention_ms=60_000)
    explained = explain(config, TierView(True, True, 29), ages=[6_000, 4_000, 3_000, 0])
    assert whys(explained) == [Kept.DUE, Kept.RETENTION, Kept.RETENTION, Kept.ACTIVE]
    assert "local.retention.ms=5000" in explained[1].text
    assert explained[1].verdict.due_ms == NOW + 1_001


def test_segments_are_deleted_from_the_front() -> None:
    config = LogConfig(remote_storage_enable=True, local_retention_ms=5_000, retention_ms=60_000)
    explained = explain(config, TierView(True, True, 29), ages=[1_000, 6_000, 6_000, 0])
    assert whys(explained) == [Kept.RETENTION, Kept.BEHIND, Kept.BEHIND, Kept.ACTIVE]
    assert "the one at 0 is kept" in explained[1].text


def test_the_active_segment_says_how_it_gets_closed() -> None:
    assert "kbroker tier flush" in explain(TIERED, TierView(True, True, 29), segments=[Local(30, 0)])[0].text
    assert "the next retention round" in explain(TIERED, TierView(True, True, 29), segments=[Local(30, 9)])[0].text
    plain = explain(LogConfig(), TierView(False), segments=[Local(30, 9)])[0]
    assert (plain.why, "tier" in plain.text) == (Kept.ACTIVE, False)


@pytest.mark.parametrize("log_start", [0, 10, 25])
def test_segments_below_the_log_start_are_due(log_start: int) -> None:
    explained = explain(
        LogConfig(remote_storage_enable=True, retention_ms=-1), TierView(True, True, -1), log_start=log_start
    )
    assert whys(explained).count(Kept.DUE) == log_start // 10


@given(data=st.data())
def test_due_segments_are_those_that_retention_deletes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    ages = data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    limit = st.one_of(st.just(-1), st.integers(0, 120))
    config = LogConfig(
        remote_storage_enable=True,
        retention_ms=data.draw(limit),
        retention_bytes=data.draw(limit),
        local_retention_ms=data.draw(st.one_of(st.just(-2), limit)),
        local_retention_bytes=data.draw(st.one_of(st.just(-2), limit)),
    )
    segments = [Local(at * 10, size) for at, size in enumerate(sizes)]
    end = count * 10
    copies = data.draw(st.booleans())
    highest = data.draw(st.integers(-1, end - 11)) if copies and count > 1 else -1
    log_start = data.draw(st.integers(0, end))
    watermark = data.draw(st.integers(log_start, end))
    timestamps = [NOW - age for age in ages]
    verdicts = list(
        judge(
            segments,
            largest_timestamp=timestamps.__getitem__,
            limits=local_limits(config, is_copied=copies),
            log_start_offset=log_start,
            log_end_offset=end,
            high_watermark=watermark,
            timestamp_ms=NOW,
            waits_for_copy=copies,
            highest_offset_in_remote_storage=highest if copies else None,
        )
    )
    plan = plan_retention(iter(verdicts), is_copied=copies)
    explained = why_kept(
        verdicts, config, TierView(True, copies, highest), high_watermark=watermark, last_stable_offset=watermark
    )
    closed = {segment.base_offset for segment in segments[:-1]}
    assert [one.verdict.base_offset for one in explained if one.why is Kept.DUE] == [
        one for one in plan.doomed if one in closed
    ]
