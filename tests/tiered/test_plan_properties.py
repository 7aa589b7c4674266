"""The decisions of the tier against naive ones that check each offset, for generated histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.testing.tier_checker import epoch_at
from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.plan import Lineage, clipped_epochs
from tests.tiered.test_plan import NOW, State, expiry, remote


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """The epochs of a log, those of another history with the same beginning, and the log end offset."""
    count = draw(st.integers(1, 6))
    epochs = sorted(draw(st.sets(st.integers(0, 30), min_size=count, max_size=count)))
    bounds = sorted(draw(st.sets(st.integers(0, 60), min_size=count, max_size=count)))
    ours = list(zip(epochs, bounds, strict=True))
    shared = draw(st.integers(0, count))
    theirs = ours[:shared]
    start = theirs[-1][1] if theirs else -1
    for _ in range(draw(st.integers(0, 3))):
        # An epoch has one leader: no other history has one of ours after they parted.
        last = theirs[-1][0] if theirs else -1
        epoch = draw(st.integers(last + 1, last + 9).filter(lambda epoch: epoch not in epochs))
        start = draw(st.integers(start + 1, start + 20))
        theirs.append((epoch, start))
    end = bounds[-1] + draw(st.integers(1, 20))
    return ours, theirs, end


@given(histories(), st.integers(0, 70), st.integers(0, 15), st.booleans())
def test_the_lineage_matches_a_check_of_each_offset(
    history: tuple[list[tuple[int, int]], list[tuple[int, int]], int], start: int, length: int, is_ours: bool
) -> None:
    ours, theirs, log_end = history
    source = ours if is_ours else theirs
    end = start + length
    epochs = clipped_epochs(source, start, end + 1)
    if not epochs:
        return
    first = ours[0][1]
    common = range(max(start, first), end + 1)
    same = all(epoch_at(epochs, offset) == epoch_at(ours, offset) for offset in common)
    expected = bool(common) and same and end < log_end
    found = remote(start, end, epochs=epochs) in Lineage(ours, log_end_offset=log_end)
    if epochs[-1][0] == ours[0][0] and not common:
        return  # wholly below the start of the oldest epoch: Kafka lets it pass, and the log's start decides
    assert found is expected


@given(histories(), st.integers(0, 70), st.integers(1, 20))
def test_clipped_epochs_give_the_logs_epoch_of_each_offset(
    history: tuple[list[tuple[int, int]], list[tuple[int, int]], int], start: int, length: int
) -> None:
    ours, _, _ = history
    clipped = clipped_epochs(ours, start, start + length)
    for offset in range(start, start + length):
        assert epoch_at(clipped, offset) == epoch_at(ours, offset)
    assert all(start <= at < start + length for _, at in clipped)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[RemoteLogSegmentMetadata], int, int]:
    """(epochs, segments in every state that overlap and cover the log's history, log start, log end)."""
    end = draw(st.integers(20, 80))
    count = draw(st.integers(1, 4))
    bounds = sorted(draw(st.sets(st.integers(1, end - 1), min_size=count - 1, max_size=count - 1)))
    epochs = list(
        zip(sorted(draw(st.sets(st.integers(0, 9), min_size=count, max_size=count))), [0, *bounds], strict=True)
    )
    segments: list[RemoteLogSegmentMetadata] = []
    at = 0
    while at < end - 1:
        last = min(at + draw(st.integers(0, 15)), end - 1)
        first = max(0, at - draw(st.sampled_from([0, 0, 0, 2])))
        segments.append(
            remote(
                first,
                last,
                epochs=clipped_epochs(epochs, first, last + 1),
                number=len(segments) + 1,
                size=draw(st.integers(1, 50)),
                age_ms=draw(st.integers(0, 1_000)),
                state=draw(st.sampled_from([State.COPY_SEGMENT_FINISHED] * 5 + [State(0), State(2)])),
            )
        )
        at = last + 1
    return epochs, segments, draw(st.integers(0, end)), end


def bytes_once(segments: list[RemoteLogSegmentMetadata]) -> int:
    """The bytes of segments, without those that lie within another one."""
    return sum(
        one.segment_size_in_bytes
        for at, one in enumerate(segments)
        if not any(
            other.start_offset <= one.start_offset
            and one.end_offset <= other.end_offset
            and (number < at or (other.start_offset, other.end_offset) != (one.start_offset, one.end_offset))
            for number, other in enumerate(segments)
            if number != at
        )
    )


@given(partitions(), st.integers(-1, 1_000), st.integers(-1, 400), st.integers(0, 60))
def test_expiry_matches_a_check_of_each_offset(
    partition: tuple[list[tuple[int, int]], list[RemoteLogSegmentMetadata], int, int],
    retention_ms: int,
    retention_bytes: int,
    local_bytes: int,
) -> None:
    epochs, segments, start, end = partition
    kept_epochs = clipped_epochs(epochs, start, end) or ((epochs[-1][0], end),)
    plan = expiry(
        segments,
        epochs=kept_epochs,
        start=start,
        end=end,
        local_bytes=local_bytes,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
    doomed = {one.metadata.remote_log_segment_id for one in plan.doomed}
    new_start = plan.log_start_offset if plan.log_start_offset is not None else start
    assert new_start >= start
    finished = [one for one in segments if one.state is State.COPY_SEGMENT_FINISHED]
    for one in segments:
        is_doomed = one.remote_log_segment_id in doomed
        if one.state is State.DELETE_SEGMENT_STARTED:
            assert is_doomed
        elif one.state is State.COPY_SEGMENT_STARTED:
            assert not is_doomed
        elif one.end_offset < start:
            assert is_doomed, "nothing below the log start is kept"
        elif is_doomed:
            assert one.end_offset < new_start, "no reader is sent to a deleted segment"
            too_old = retention_ms >= 0 and NOW - one.max_timestamp_ms > retention_ms
            goes_with_another = any(
                other is not one
                and other.remote_log_segment_id in doomed
                and other.start_offset <= one.start_offset
                and one.end_offset <= other.end_offset
                for other in finished
            )
            assert too_old or retention_bytes >= 0 or goes_with_another
    if retention_ms < 0 and retention_bytes < 0:
        assert new_start == start
    left = [one for one in finished if one.remote_log_segment_id not in doomed]
    left.sort(key=lambda one: (one.start_offset, one.end_offset))
    # What stays is either not too much, or would be too little without the bytes of its first segment.
    stays = bytes_once(left) + local_bytes
    if left and 0 <= retention_bytes < stays:
        assert stays - left[0].segment_size_in_bytes < retention_bytes
    if retention_ms >= 0 and left:
        assert NOW - left[0].max_timestamp_ms <= retention_ms, "the oldest retained segment is young enough"
