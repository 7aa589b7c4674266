"""The metadata cache of one partition's remote segments: `kbroker.tiered.lifecycle`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, ORDERS, STARTED, segment_metadata, update_to
from kbroker.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache, ranges
from kbroker.tiered.partition import NOTHING

LAST_OFFSET = 8  # so few that ranges are often equal or within each other
LAST_EPOCH = 3


def cache_of(*events: MetadataEvent) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache()
    for event in events:
        assert cache.replay(event) is None
    return cache


def finished(start: int, end: int, **what: object) -> tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate]:
    metadata = segment_metadata(ORDERS, start, end, **what)  # type: ignore[arg-type]
    return metadata, update_to(metadata, FINISHED)


# --- states -----------------------------------------------------------------------------------------------------------

FOLLOWS = {
    None: {STARTED},
    STARTED: {STARTED, FINISHED, DELETING},
    FINISHED: {FINISHED, DELETING},
    DELETING: {DELETING, DELETED},
    DELETED: {STARTED},
}
WAYS: dict[RemoteLogSegmentState | None, list[RemoteLogSegmentState]] = {
    None: [],
    STARTED: [STARTED],
    FINISHED: [STARTED, FINISHED],
    DELETING: [STARTED, FINISHED, DELETING],
    DELETED: [STARTED, DELETING, DELETED],
}


@pytest.mark.parametrize("target", list(RemoteLogSegmentState))
@pytest.mark.parametrize("way", WAYS)
def test_kafka_15632_invalid_transitions_are_dropped(
    way: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> None:
    metadata = segment_metadata(ORDERS, 0, 9)
    cache = cache_of(*(metadata if state is STARTED else update_to(metadata, state) for state in WAYS[way]))
    before = cache.list_remote_log_segments()
    why = cache.replay(metadata if target is STARTED else update_to(metadata, target))
    if target in FOLLOWS[way]:
        assert why is None
        assert [each.state for each in cache.list_remote_log_segments()] == [target] * (target is not DELETED)
    else:
        assert why is not None
        assert target.name in why or "no remote segment" in why
        assert cache.list_remote_log_segments() == before


def test_updates_cannot_start_a_copy_nor_metadata_end_one() -> None:
    begun, done = finished(0, 9)
    cache = cache_of(begun)
    assert cache.replay(update_to(begun, STARTED)) is not None
    assert cache.replay(replace(segment_metadata(ORDERS, 0, 9), state=FINISHED)) is not None
    assert cache.replay(replace(begun, state=FINISHED)) is None, "a full record with a valid next state"
    assert cache.replay(done) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"end_offset": -1},
        {"start_offset": -1},
        {"segment_size_in_bytes": -1},
        {"segment_leader_epochs": ()},
        {"segment_leader_epochs": ((1, 0), (1, 5))},
        {"segment_leader_epochs": ((2, 0), (1, 5))},
    ],
    ids=str,
)
def test_kafka_15632_inconsistent_metadata_are_dropped(wrong: dict[str, object]) -> None:
    cache = RemoteLogMetadataCache()
    assert cache.replay(replace(segment_metadata(ORDERS, 0, 9), **wrong)) is not None  # type: ignore[arg-type]
    assert not cache.segments


def test_an_update_without_custom_metadata_keeps_them() -> None:
    begun = segment_metadata(ORDERS, 0, 9)
    cache = cache_of(begun, update_to(begun, FINISHED, custom=b"gave"), update_to(begun, DELETING))
    (known,) = cache.list_remote_log_segments()
    assert (known.custom_metadata, known.state) == (b"gave", DELETING)


# --- overlaps ---------------------------------------------------------------------------------------------------------


def test_kafka_15168_all_offsets_of_overlapping_segments_are_found() -> None:
    first, second = finished(0, 100), finished(50, 150)
    for one, other in ((first, second), (second, first)):
        cache = cache_of(*one, *other)
        found = [cache.remote_log_segment_metadata(0, offset) for offset in (0, 49, 50, 100, 101, 150, 151)]
        assert [each and each.start_offset for each in found] == [0, 0, 50, 50, 50, 50, None]


def test_a_smaller_later_segment_does_not_hide_a_larger_one() -> None:
    cache = cache_of(*finished(5, 100), *finished(10, 90))
    found = cache.remote_log_segment_metadata(0, 95)
    assert found is not None
    assert found.start_offset == 5


def test_the_newer_of_two_segments_with_equal_offsets_is_found() -> None:
    newer, older = segment_metadata(ORDERS, 0, 9), segment_metadata(ORDERS, 0, 9)
    done = (update_to(newer, FINISHED, later_ms=7), update_to(older, FINISHED, later_ms=3))
    for events in (done, done[::-1]):
        found = cache_of(newer, older, *events).remote_log_segment_metadata(0, 5)
        assert found is not None
        assert found.remote_log_segment_id == newer.remote_log_segment_id


def test_a_covered_segment_is_found_after_the_larger_is_deleted() -> None:
    large, large_done = finished(0, 100)
    cache = cache_of(*finished(10, 20), *finished(30, 40), large, large_done)
    assert cache.replay(update_to(large, DELETING)) is None
    found = [cache.remote_log_segment_metadata(0, offset) for offset in (5, 10, 25, 40)]
    assert [each and each.start_offset for each in found] == [None, 10, None, 30]
    assert cache.highest_offset_for_epoch(0) == 100


def test_kafka_15241_epochs_separate_segments_of_two_lineages() -> None:
    cache = cache_of(*finished(0, 99, epochs={1: 0}), *finished(0, 149, epochs={0: 0, 2: 50}))
    assert cache.highest_offset_for_epoch(1) == 99
    assert cache.highest_offset_for_epoch(0) == 49
    assert cache.highest_offset_for_epoch(2) == 149
    assert cache.remote_log_segment_metadata(2, 49) is None


def test_an_epoch_without_records_is_listed_but_not_found() -> None:
    cache = cache_of(*finished(100, 199, epochs={3: 100, 4: 100, 5: 150}))
    assert len(cache.list_remote_log_segments()) == 1
    assert cache.highest_offset_for_epoch(3) is None
    assert [cache.remote_log_segment_metadata(3, offset) for offset in (99, 100)] == [None, None]
    assert cache.remote_log_segment_metadata(4, 100) is not None


# --- against a model --------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """A brute-force model: a dictionary, and a scan of everything for each query."""

    segments: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)

    def replay(self, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> bool:
        segment_id = event.remote_log_segment_id.id
        known = self.segments.get(segment_id)
        if event.state not in FOLLOWS[known.state if known else None]:
            return False
        if isinstance(event, RemoteLogSegmentMetadata):
            self.segments[segment_id] = event
        elif known is None or event.state is STARTED:
            return False
        else:
            self.segments[segment_id] = replace(
                known,
                state=event.state,
                event_timestamp_ms=event.event_timestamp_ms,
                broker_id=event.broker_id,
                custom_metadata=event.custom_metadata or known.custom_metadata,
            )
        if event.state is DELETED:
            del self.segments[segment_id]
        elif event.state is FINISHED:
            for epoch, first, last in ranges(self.segments[segment_id]):
                if last >= first:
                    self.highest[epoch] = max(last, self.highest.get(epoch, NOTHING))
        return True

    def held(self, epoch: int) -> list[tuple[int, int, tuple[int, UUID], UUID]]:
        """(first, last, rank, id) of the finished segments of an epoch whose range lies within no other range."""
        every = [
            (first, last, (each.event_timestamp_ms, segment_id), segment_id)
            for segment_id, each in self.segments.items()
            for number, first, last in ranges(each)
            if each.state is FINISHED and number == epoch and last >= first
        ]

        def lies_in(
            one: tuple[int, int, tuple[int, UUID], UUID], other: tuple[int, int, tuple[int, UUID], UUID]
        ) -> bool:
            if one[:2] == other[:2]:
                return one[2] < other[2]
            return other[0] <= one[0] and one[1] <= other[1]

        return sorted(one for one in every if not any(lies_in(one, other) for other in every))

    def find(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        found = [held for held in self.held(epoch) if held[0] <= offset <= held[1]]
        return self.segments[found[-1][3]] if found else None

    def next_with_transactions(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        found = (self.segments[held[3]] for held in self.held(epoch) if held[1] >= offset)
        return next((each for each in found if not each.txn_index_empty), None)


@st.composite
def events(draw: st.DrawFn) -> list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]:
    ids = [RemoteLogSegmentId(ORDERS, UUID(int=number)) for number in range(1, 7)]
    found: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate] = []
    for at in range(draw(st.integers(0, 40))):
        segment_id = draw(st.sampled_from(ids))
        if draw(st.integers(0, 2)) == 0:
            start = draw(st.integers(0, LAST_OFFSET))
            end = draw(st.integers(start, LAST_OFFSET))
            numbers = sorted(draw(st.sets(st.integers(0, LAST_EPOCH), min_size=1, max_size=3)))
            starts = [start, *sorted(draw(st.integers(start, end + 1)) for _ in numbers[1:])]
            metadata = segment_metadata(
                ORDERS,
                start,
                end,
                epochs=dict(zip(numbers, starts, strict=True)),
                size=draw(st.integers(0, 100)),
                txn_index_empty=draw(st.booleans()),
                segment_id=segment_id.id,
            )
            found.append(replace(metadata, event_timestamp_ms=at))
        else:
            state = draw(st.sampled_from([STARTED, FINISHED, FINISHED, FINISHED, DELETING, DELETED]))
            custom = draw(st.sampled_from([None, b"custom"]))
            found.append(RemoteLogSegmentMetadataUpdate(segment_id, draw(st.integers(0, 3)), state, 7, custom))
    return found


def assert_same(cache: RemoteLogMetadataCache, model: Model) -> None:
    assert cache.segments == model.segments
    for epoch in range(LAST_EPOCH + 2):
        for offset in range(-1, LAST_OFFSET + 2):
            assert cache.remote_log_segment_metadata(epoch, offset) == model.find(epoch, offset)
            assert cache.next_segment_with_txn_index(epoch, offset) == model.next_with_transactions(epoch, offset)
        assert cache.highest_offset_for_epoch(epoch) == model.highest.get(epoch)


@given(events())
def test_kafka_15632_answers_equal_those_of_the_model(
    events: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate],
) -> None:
    cache, model = RemoteLogMetadataCache(), Model()
    for event in events:
        assert (cache.replay(event) is None) == model.replay(event)
    assert_same(cache, model)


@given(events())
def test_a_restored_cache_gives_the_same_answers(
    events: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate],
) -> None:
    cache, model = RemoteLogMetadataCache(), Model()
    for event in events:
        cache.replay(event)
        model.replay(event)
    restored = RemoteLogMetadataCache(cache.highest_offsets)
    for each in reversed(cache.list_remote_log_segments()):
        restored.put(each)
    assert_same(restored, model)
