from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from kbroker.tiered.lifecycle import RemoteLogMetadataCache
from kbroker.tiered.plan import (
    ExpiryPlan,
    ExpiryReason,
    Lag,
    Lineage,
    copy_lag,
    covered_end,
    highest_remote_offset,
    local_only_bytes,
    lowest_remote_offset,
    plan_copies,
    plan_expiry,
    without_empty_epochs,
)

PARTITION = TopicIdPartition(UUID(int=7), "orders", 0)
State = RemoteLogSegmentState
NOW = 1_000_000


def remote(
    start: int,
    end: int,
    *,
    epochs: Sequence[tuple[int, int]] | None = None,
    number: int | None = None,
    size: int = 100,
    age_ms: int = 0,
    state: RemoteLogSegmentState = State.COPY_SEGMENT_FINISHED,
    broker_id: int = 1,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, UUID(int=start + 1 if number is None else number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=NOW - age_ms,
        broker_id=broker_id,
        event_timestamp_ms=0,
        segment_leader_epochs=tuple(epochs) if epochs is not None else ((0, start),),
        segment_size_in_bytes=size,
        state=state,
    )


@dataclass
class Local:
    base_offset: int
    size: int = 100


def expiry(
    segments: Sequence[RemoteLogSegmentMetadata],
    *,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    end: int = 1_000,
    start: int = 0,
    local_bytes: int = 0,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    copying: frozenset[RemoteLogSegmentId] = frozenset(),
    is_abandoned: Callable[[RemoteLogSegmentMetadata], bool] = lambda _: False,
) -> ExpiryPlan:
    return plan_expiry(
        segments,
        Lineage(epochs, log_end_offset=end),
        log_start_offset=start,
        local_bytes=local_bytes,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        timestamp_ms=NOW,
        copying=copying,
        is_abandoned=is_abandoned,
    )


def starts(plan: ExpiryPlan) -> list[int]:
    return [one.metadata.start_offset for one in plan.doomed]


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_epochs_without_records_are_dropped() -> None:
    entries = [(0, 0), (1, 10), (5, 60), (6, 60), (7, 70)]
    assert without_empty_epochs(entries) == [(0, 0), (1, 10), (6, 60), (7, 70)]
    assert without_empty_epochs([]) == []


LEADER = ((1, 10), (3, 20), (4, 30), (7, 50))


@pytest.mark.parametrize(
    ("segment", "belongs"),
    [
        (remote(12, 18, epochs=[(1, 12)]), True),
        (remote(10, 19, epochs=[(1, 10)]), True),
        (remote(10, 20, epochs=[(1, 10)]), False),  # it goes on where epoch 3 begins
        (remote(5, 15, epochs=[(1, 5)]), True),  # of the oldest epoch the start does not matter
        (remote(5, 15, epochs=[(0, 5), (1, 10)]), True),  # nor do older epochs: the head of it was deleted
        (remote(5, 15, epochs=[(0, 5)]), False),
        (remote(15, 25, epochs=[(1, 15), (3, 20)]), True),
        (remote(15, 25, epochs=[(1, 15), (3, 21)]), False),  # the next epoch begins elsewhere
        (remote(15, 25, epochs=[(1, 15), (2, 20)]), False),  # an epoch that this log never had
        (remote(15, 35, epochs=[(1, 15), (4, 30)]), False),  # one is left out
        (remote(18, 25, epochs=[(3, 18)]), False),  # before epoch 3 began
        (remote(50, 99, epochs=[(7, 50)]), True),
        (remote(50, 100, epochs=[(7, 50)]), False),  # behind the log's end
        (remote(50, 60, epochs=[(8, 50)]), False),
        (remote(28, 40, epochs=[(3, 28), (4, 30)]), True),
    ],
)
def test_a_segment_with_the_logs_epochs_is_in_the_lineage(segment: RemoteLogSegmentMetadata, belongs: bool) -> None:
    assert (segment in Lineage(LEADER, log_end_offset=100)) is belongs


def test_the_lineage_without_epochs_is_empty() -> None:
    assert remote(0, 9) not in Lineage((), log_end_offset=100)


# --- what the tier has ------------------------------------------------------------------------------------------------


def highest(segments: Sequence[RemoteLogSegmentMetadata], epochs: Sequence[tuple[int, int]], end: int) -> int:
    known = RemoteLogMetadataCache()
    for each in segments:
        known.put(each)
    return highest_remote_offset(known.highest_offset_for_epoch, epochs, log_end_offset=end)


def test_kafka_15241_the_highest_remote_offset_belongs_to_this_history() -> None:
    copied = [remote(0, 9, epochs=[(0, 0)]), remote(10, 29, epochs=[(0, 10), (1, 15)])]
    assert highest(copied, [(0, 0), (1, 15), (2, 40)], 50) == 29
    # Epoch 1 ended at 20 here: what the other leader copied beyond was never part of this log.
    assert highest(copied, [(0, 0), (1, 15), (2, 20)], 50) == 19
    # Epoch 1 never happened here.
    assert highest(copied, [(0, 0), (2, 20)], 50) == 14
    assert highest(copied, [(3, 0)], 50) == -1
    assert highest([], [(0, 0)], 50) == -1
    assert highest(copied, [(0, 0), (1, 15)], 18) == 17, "a truncated log"


def test_the_covered_end_is_before_the_first_gap() -> None:
    lineage = Lineage([(0, 0), (2, 20)], log_end_offset=100)
    segments = [remote(0, 9), remote(10, 19, epochs=[(0, 10)]), remote(30, 39, epochs=[(2, 30)])]
    assert covered_end(segments, lineage, start=5) == 19
    assert covered_end(segments, lineage, start=20) == 19
    assert covered_end(segments, lineage, start=33) == 39
    assert covered_end([*segments, remote(20, 29, epochs=[(1, 20)], number=99)], lineage, start=0) == 19
    assert covered_end([*segments, remote(15, 32, epochs=[(0, 15), (2, 20)], number=99)], lineage, start=0) == 39
    started = replace(remote(20, 29, epochs=[(2, 20)]), state=State.COPY_SEGMENT_STARTED)
    assert covered_end([*segments, started], lineage, start=0) == 19


def test_the_lowest_remote_offset_is_of_this_history() -> None:
    lineage = Lineage([(0, 0), (2, 20)], log_end_offset=100)
    segments = [
        remote(0, 4, state=State.DELETE_SEGMENT_STARTED),
        remote(5, 9, state=State.COPY_SEGMENT_STARTED),
        remote(7, 19, epochs=[(1, 7)]),
        remote(10, 19),
        remote(20, 29, epochs=[(2, 20)]),
    ]
    assert lowest_remote_offset(segments, lineage) == 10
    assert lowest_remote_offset(segments[:3], lineage) is None


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (remote(15, 29, epochs=[(0, 15)]), 15),
        (remote(20, 29, epochs=[(0, 20)]), None),
        (remote(10, 29, epochs=[(0, 10), (1, 15)]), 10),
        (remote(10, 29, epochs=[(1, 10), (2, 15)]), 20),
        (remote(10, 29, epochs=[(1, 10), (2, 25)]), 25),
        (remote(100, 109, epochs=[(2, 100)]), None),
    ],
)
def test_kafka_15241_shared_parts_of_a_segment_count(segment: RemoteLogSegmentMetadata, expected: int | None) -> None:
    """The head of a fenced leader's segment is shared history; it may be the only copy of these offsets."""
    lineage = Lineage([(0, 0), (2, 20)], log_end_offset=100)
    assert lowest_remote_offset([segment], lineage) == expected


# --- copying ----------------------------------------------------------------------------------------------------------

LOCAL = [Local(0), Local(10), Local(20), Local(30)]


def candidates(from_offset: int, stable: int, segments: Sequence[Local] = LOCAL) -> list[tuple[int, int]]:
    found = plan_copies(segments, from_offset=from_offset, last_stable_offset=stable)
    return [(one.segment.base_offset, one.next_offset) for one in found]


@pytest.mark.parametrize(
    ("from_offset", "stable", "expected"),
    [
        (0, 35, [(0, 10), (10, 20), (20, 30)]),  # all but the active one
        (0, 30, [(0, 10), (10, 20), (20, 30)]),  # the last rolled segment too: all of it is decided
        (0, 29, [(0, 10), (10, 20)]),
        (0, 9, []),
        (10, 35, [(10, 20), (20, 30)]),
        (15, 35, [(10, 20), (20, 30)]),  # it begins inside a segment: all of that one
        (30, 35, []),
    ],
)
def test_decided_closed_segments_are_copied_in_order(
    from_offset: int, stable: int, expected: list[tuple[int, int]]
) -> None:
    assert candidates(from_offset, stable) == expected


def test_kafka_15272_an_idle_logs_last_closed_segment_is_copied() -> None:
    """The active segment is empty and stays empty: the one before it is copied anyway."""
    assert candidates(30, 40, [*LOCAL, Local(40, size=0)]) == [(30, 40)]
    assert candidates(0, 0, [Local(0, size=0)]) == []


def test_kafka_19995_the_copy_lag_excludes_the_active_segment() -> None:
    segments = [Local(0, 5), Local(10, 7), Local(20, 11)]
    assert copy_lag(segments, from_offset=0) == Lag(12, 2)
    assert copy_lag(segments, from_offset=10) == Lag(7, 1)
    assert copy_lag(segments, from_offset=15) == Lag(7, 1), "a partial copy does not count"
    assert copy_lag(segments, from_offset=26) == Lag(0, 0), "the tier may have the former active segment"
    assert copy_lag([Local(0, 5)], from_offset=0) == Lag(0, 0)
    assert local_only_bytes(segments, highest_remote=9) == 18
    assert local_only_bytes(segments, highest_remote=-1) == 23


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_retention_by_time_stops_at_the_first_young_segment() -> None:
    segments = [remote(20, 29, age_ms=500), remote(0, 9, age_ms=501), remote(10, 19, age_ms=900)]
    plan = expiry(segments, retention_ms=500)
    assert starts(plan) == [0, 10]
    assert {one.reason for one in plan.doomed} == {ExpiryReason.TIME}
    assert plan.log_start_offset == 20
    assert plan.lag == Lag(200, 2)
    young_first = [remote(0, 9, age_ms=1), remote(10, 19, age_ms=900)]
    assert expiry(young_first, retention_ms=500) == ExpiryPlan(size_bytes=200, segments=2, retained_bytes=200)


def test_retention_by_size_deletes_only_complete_excess() -> None:
    segments = [remote(at, at + 9) for at in range(0, 50, 10)]
    assert starts(expiry(segments, retention_bytes=250, local_bytes=0)) == [0, 10]
    assert starts(expiry(segments, retention_bytes=250, local_bytes=49)) == [0, 10]
    assert starts(expiry(segments, retention_bytes=250, local_bytes=50)) == [0, 10, 20]
    assert starts(expiry(segments, retention_bytes=0)) == [0, 10, 20, 30, 40]
    assert starts(expiry(segments, retention_bytes=500)) == []
    assert expiry(segments, retention_bytes=250).log_start_offset == 20


def test_without_limits_nothing_is_deleted() -> None:
    assert expiry([remote(0, 9, age_ms=10**9)]) == ExpiryPlan(size_bytes=100, segments=1, retained_bytes=100)


def test_segments_below_the_log_start_are_deleted() -> None:
    segments = [remote(0, 9), remote(10, 19), remote(20, 29)]
    plan = expiry(segments, start=25, epochs=[(0, 25)])
    assert starts(plan) == [0, 10]
    assert {one.reason for one in plan.doomed} == {ExpiryReason.LOG_START}
    assert plan.log_start_offset is None


def test_deletions_below_the_log_start_reduce_the_excess() -> None:
    """Kafka counts it as size and not as deleted, and so deletes too much."""
    segments = [remote(at, at + 9) for at in range(0, 50, 10)]
    assert starts(expiry(segments, start=25, epochs=[(0, 25)], retention_bytes=300)) == [0, 10]


def test_kafka_16890_the_log_start_follows_the_highest_expired_end() -> None:
    epochs = [(5, 10), (7, 15), (9, 100)]
    segments = [
        remote(5, 50, epochs=[(5, 5), (7, 15)], age_ms=900, number=1),
        remote(14, 70, epochs=[(5, 14), (7, 15)], age_ms=900, number=2),
        remote(20, 40, epochs=[(7, 20)], age_ms=900, number=3),
        remote(71, 99, epochs=[(7, 71)], age_ms=1, number=4),
    ]
    plan = expiry(segments, epochs=epochs, start=10, retention_ms=500)
    assert plan.log_start_offset == 71
    assert {one.metadata.remote_log_segment_id.id.int for one in plan.doomed} == {1, 2, 3}


def test_kafka_16511_segments_of_other_histories_block_nothing() -> None:
    epochs = [(0, 0), (2, 20)]
    segments = [
        remote(0, 9, age_ms=900),
        remote(10, 30, epochs=[(0, 10), (1, 15)], age_ms=900, number=66),  # a leader that was not to be
        remote(10, 19, age_ms=900),
        remote(20, 29, epochs=[(2, 20)], age_ms=900),
    ]
    plan = expiry(segments, epochs=epochs, retention_ms=500)
    assert starts(plan) == [0, 10, 20]
    assert 66 not in [one.metadata.remote_log_segment_id.id.int for one in plan.doomed]
    assert plan.log_start_offset == 30


def test_records_that_two_leaders_have_copied_count_once() -> None:
    segments = [remote(0, 9), remote(10, 19), remote(10, 19, number=77), remote(12, 17, size=60), remote(20, 29)]
    assert not expiry(segments, retention_bytes=300).doomed
    plan = expiry(segments, retention_bytes=200)
    assert (starts(plan), plan.log_start_offset) == ([0], 10)


def test_overlapping_segments_below_the_log_start_are_deleted() -> None:
    segments = [remote(10, 29), remote(12, 19), remote(20, 24, age_ms=900)]
    plan = expiry(segments, start=20, epochs=[(0, 20)], retention_ms=500)
    assert starts(plan) == [12], "only newer segments, or parts of it, follow a retained one"


def test_segments_of_older_epochs_are_deleted_below_the_start() -> None:
    segments = [remote(0, 9, epochs=[(0, 0)]), remote(10, 30, epochs=[(1, 10)]), remote(20, 40, epochs=[(3, 20)])]
    plan = expiry(segments, epochs=[(3, 20)], start=20)
    assert [(one.metadata.start_offset, one.reason) for one in plan.doomed] == [(0, ExpiryReason.EPOCHS)]
    assert plan.log_start_offset is None
    plan = expiry(segments, epochs=[(3, 31)], start=31)
    assert [(one.metadata.start_offset, one.reason) for one in plan.doomed] == [
        (0, ExpiryReason.EPOCHS),
        (10, ExpiryReason.EPOCHS),
    ]


def test_kafka_15479_a_segment_of_several_epochs_counts_once() -> None:
    epochs = [(0, 0), (1, 3), (2, 6)]
    wide = remote(0, 9, epochs=epochs)
    segments = [wide, remote(10, 19, epochs=[(2, 10)]), wide]
    plan = expiry(segments, epochs=epochs, retention_bytes=200)
    assert (starts(plan), plan.size_bytes, plan.segments) == ([], 200, 2)
    assert starts(expiry(segments, epochs=epochs, retention_bytes=100)) == [0]


def test_kafka_17062_m12_failed_copies_do_not_count_as_size() -> None:
    """Only finished copies count as size, and not segments being deleted; failed copies never displace good data."""
    good = [remote(0, 9), remote(10, 19)]
    failed = [remote(20, 29, state=State.COPY_SEGMENT_STARTED, number=100 + number) for number in range(50)]
    plan = expiry([*good, *failed], retention_bytes=200)
    assert starts(plan) == []
    assert (plan.size_bytes, plan.segments, plan.retained_bytes) == (200, 2, 200)
    going = remote(20, 29, state=State.DELETE_SEGMENT_STARTED)
    plan = expiry([*good, going], retention_bytes=200)
    assert starts(plan) == [20], "deletions in progress do not doom good data"
    assert (plan.size_bytes, plan.segments) == (300, 3)


def test_kafka_17428_an_unfinished_deletion_is_retried() -> None:
    stuck = remote(10, 19, state=State.DELETE_SEGMENT_STARTED)
    plan = expiry([remote(0, 9), stuck, remote(20, 29)])
    assert [(one.metadata, one.reason) for one in plan.doomed] == [(stuck, ExpiryReason.AGAIN)]
    assert plan.log_start_offset is None


def test_abandoned_copies_are_deleted_and_running_ones_end_the_scan() -> None:
    mine = remote(0, 9, state=State.COPY_SEGMENT_STARTED, broker_id=1)
    another = remote(10, 19, state=State.COPY_SEGMENT_STARTED, broker_id=2)
    old = remote(20, 29, age_ms=900)
    plan = expiry([mine, another, old], retention_ms=500, is_abandoned=lambda one: one.broker_id == 1)
    assert [(one.metadata.start_offset, one.reason) for one in plan.doomed] == [
        (0, ExpiryReason.ABANDONED),
        (20, ExpiryReason.TIME),
    ]
    under_way = frozenset({mine.remote_log_segment_id})
    plan = expiry([mine, another, old], retention_ms=500, is_abandoned=lambda _: True, copying=under_way)
    assert [one.metadata.start_offset for one in plan.doomed] == [10]
    assert plan.log_start_offset is None
