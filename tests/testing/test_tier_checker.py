"""Checker K9 finds its violations: each rule is broken once, alone."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.testing.tier_checker import (
    TierState,
    complaints_about,
    complaints_about_bytes,
    complaints_about_objects,
    epoch_at,
)
from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

PARTITION = TopicIdPartition(UUID(int=7), "orders", 0)


def remote(start: int, end: int, *, epochs: tuple[tuple[int, int], ...] = ()) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, UUID(int=start + 1)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=epochs or ((0, start),),
        segment_size_in_bytes=100,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )


SOUND = TierState(
    log_start_offset=5,
    local_log_start_offset=20,
    log_end_offset=40,
    last_stable_offset=35,
    highest_remote=29,
    leader_epochs=((0, 5), (2, 15)),
    segments=(
        remote(0, 9),
        remote(10, 19, epochs=((0, 10), (2, 15))),
        remote(20, 29, epochs=((2, 20),)),
    ),
)


def test_a_valid_state_has_no_complaint() -> None:
    assert list(complaints_about(SOUND)) == []
    assert list(complaints_about(replace(SOUND, highest_remote=None))) == []
    nothing_tiered = replace(SOUND, log_start_offset=20, highest_remote=-1, segments=())
    assert list(complaints_about(nothing_tiered)) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"log_start_offset": 21}, "log_start_offset 21 <= local_log_start_offset 20"),
        ({"log_end_offset": 19, "last_stable_offset": 19, "highest_remote": 18}, "<= log_end_offset 19 does not hold"),
        ({"last_stable_offset": 41}, "last_stable_offset 41 is not within"),
        ({"last_stable_offset": 29}, "the tier has offset 29, which is not below"),
        ({"highest_remote": 12}, "a hole between 12"),
        ({"segments": SOUND.segments[1:]}, "no finished segment with offset 5 of epoch 0"),  # type: ignore[index]
        ({"segments": (SOUND.segments[0], SOUND.segments[2])}, "offset 10"),  # type: ignore[index]
        ({"segments": SOUND.segments[:2]}, "offset 20 of epoch 2, though it is said"),  # type: ignore[index]
        ({"leader_epochs": ((0, 5), (1, 12), (2, 15))}, "offset 12 of epoch 1"),
        ({"segments": (*SOUND.segments, remote(0, 9))}, "listed twice"),
    ],
)
def test_each_broken_rule_is_reported(broken: dict[str, object], complaint: str) -> None:
    found = list(complaints_about(replace(SOUND, **broken)))
    assert any(complaint in one for one in found), found


@pytest.mark.parametrize("state", [State for State in RemoteLogSegmentState if State != 1])
def test_only_finished_segments_cover_offsets(state: RemoteLogSegmentState) -> None:
    segments = [replace(one, state=state) for one in SOUND.segments]
    assert list(complaints_about(replace(SOUND, segments=segments)))


def test_missing_and_wrong_bytes_are_reported() -> None:
    segment = remote(0, 9)
    written = {0: b"first", 5: b"second", 10: b"third"}
    epochs = ((0, 0),)
    stored = {segment.remote_log_segment_id.id: b"firstsecond"}
    assert list(complaints_about_bytes([segment], stored, written, epochs)) == []
    assert "missing" in next(complaints_about_bytes([segment], {}, written, epochs))
    wrong = {segment.remote_log_segment_id.id: b"firstthird"}
    assert "differs from what was written" in next(complaints_about_bytes([segment], wrong, written, epochs))
    assert list(complaints_about_bytes([segment], wrong, written, ((1, 0),))) == [], "another history's"


def test_an_unknown_object_is_an_orphan() -> None:
    segment = remote(0, 9)
    known = segment.remote_log_segment_id.id
    assert list(complaints_about_objects([known], [segment])) == []
    assert "is an orphan" in next(complaints_about_objects([known, UUID(int=99)], [segment]))


def test_an_offset_has_the_epoch_of_the_entry_before_it() -> None:
    assert [epoch_at(((1, 10), (3, 20)), offset) for offset in (9, 10, 19, 20)] == [-1, 1, 1, 3]
