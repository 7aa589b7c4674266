from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.spark.pieces import Piece, SegmentPiece, TailPiece
from kbroker.spark.plan import (
    Hole,
    PartitionState,
    cut_by_bytes,
    divided,
    joined,
    needs_index,
    parts_of,
    placed,
    task_size,
    tile,
    usable_segments,
)
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.plan import clipped_epochs
from wire.record_batch import batches

PARTITION = TopicIdPartition(UUID(int=7), "orders", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Epochs = tuple[tuple[int, int], ...]


def segment(
    start: int, end: int, epochs: Epochs = ((0, 0),), *, number: int = 0, state: RemoteLogSegmentState = FINISHED
) -> RemoteLogSegmentMetadata:
    """A segment of [start, end), with those of the epochs that have records in it."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, UUID(int=number or start + 1)),
        start_offset=start,
        end_offset=end - 1,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=clipped_epochs(epochs, start, end),
        segment_size_in_bytes=100 * (end - start),
        state=state,
    )


def state(
    *segments: RemoteLogSegmentMetadata,
    epochs: Epochs = ((0, 0),),
    end: int = 100,
    start: int = 0,
    has_broker: bool = True,
) -> PartitionState:
    return PartitionState(PARTITION, start, end, epochs, segments, has_broker)


def ranges(pieces: list[Piece | Hole]) -> list[tuple[str, int, int]]:
    names = {SegmentPiece: "segment", TailPiece: "tail", Hole: "hole"}
    return [(names[type(piece)], piece.start_offset, piece.end_offset) for piece in pieces]


# --- tiling -----------------------------------------------------------------------------------------------------------


def test_offsets_after_the_tier_are_fetched() -> None:
    found = tile(state(segment(0, 40), segment(40, 70)), 10, 90)
    assert ranges(found) == [("segment", 10, 40), ("segment", 40, 70), ("tail", 70, 90)]


def test_a_range_inside_one_segment_is_one_piece() -> None:
    assert ranges(tile(state(segment(0, 40)), 10, 20)) == [("segment", 10, 20)]


def test_a_range_without_offsets_has_no_pieces() -> None:
    assert tile(state(segment(0, 40)), 10, 10) == []


def test_offsets_between_two_segments_are_fetched() -> None:
    found = tile(state(segment(0, 40), segment(60, 80)), 0, 80)
    assert ranges(found) == [("segment", 0, 40), ("tail", 40, 60), ("segment", 60, 80)]


def test_without_a_broker_missing_offsets_are_a_hole() -> None:
    found = tile(state(segment(0, 40), segment(60, 80), has_broker=False), 0, 90)
    assert ranges(found) == [("segment", 0, 40), ("hole", 40, 60), ("segment", 60, 80), ("hole", 80, 90)]


def test_of_overlapping_segments_the_one_that_ends_later_is_read() -> None:
    found = tile(state(segment(0, 40, number=1), segment(0, 70, number=2), segment(30, 60, number=3)), 0, 70)
    assert [piece.segment.remote_log_segment_id.id.int for piece in found if isinstance(piece, SegmentPiece)] == [2]


@pytest.mark.parametrize("unfinished", [each for each in RemoteLogSegmentState if each is not FINISHED])
def test_an_unfinished_segment_is_not_read(unfinished: RemoteLogSegmentState) -> None:
    assert ranges(tile(state(segment(0, 40, state=unfinished)), 0, 40)) == [("tail", 0, 40)]


def test_a_segment_of_another_history_is_not_read() -> None:
    diverging = segment(40, 70, ((0, 0), (1, 50)), number=9)
    found = tile(state(segment(0, 40), diverging, epochs=((0, 0), (2, 50))), 0, 100)
    assert ranges(found) == [("segment", 0, 40), ("tail", 40, 100)]


def test_a_segment_is_read_only_after_its_outdated_head() -> None:
    # The log's history begins with epoch 5 at offset 50; the segment has those offsets in epoch 3.
    odd = segment(20, 100, ((3, 0), (5, 60)))
    found = tile(state(odd, epochs=((5, 50), (6, 100)), start=50, end=120), 50, 100)
    assert odd in usable_segments(state(odd, epochs=((5, 50), (6, 100)), start=50, end=120))
    assert ranges(found) == [("tail", 50, 100)]


def test_adjacent_ranges_to_fetch_are_one_piece() -> None:
    older = ((3, 0), (5, 60))  # the log has epoch 5 from offset 50 on, so neither segment can be read at its beginning
    known = state(segment(20, 65, older), segment(55, 100, older), epochs=((5, 50), (6, 100)), start=50, end=120)
    assert ranges(tile(known, 50, 100)) == [("tail", 50, 100)]


@dataclass(frozen=True)
class World:
    """A log with its epochs, and segments of it and of another history with the same beginning."""

    epochs: Epochs
    end: int
    segments: tuple[RemoteLogSegmentMetadata, ...]

    def epoch_of(self, offset: int) -> int:
        return [epoch for epoch, start in self.epochs if start <= offset][-1]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    end = draw(st.integers(1, 60))
    starts = sorted({0, *draw(st.lists(st.integers(0, end), max_size=4))})
    numbers = sorted(draw(st.sets(st.integers(0, 20), min_size=len(starts), max_size=len(starts))))
    true = tuple(zip(numbers, starts, strict=True))
    # The other history diverges from the log's at some offset. The log may have its epochs with other starts.
    at = draw(st.integers(0, end))
    common = tuple(entry for entry in true if entry[1] < at)
    highest = max((epoch for epoch, _ in common), default=-1)
    other = (*common, (draw(st.integers(highest + 1, highest + 4)), at))
    segments = []
    for number in range(draw(st.integers(0, 10))):
        start = draw(st.integers(0, end))
        stop = draw(st.integers(start + 1, end + 10))
        history = draw(st.sampled_from((true, true, other)))
        which = draw(st.sampled_from((FINISHED, FINISHED, FINISHED, *RemoteLogSegmentState)))
        epochs = clipped_epochs(history, start, stop)
        if epochs:
            segments.append(segment(start, stop, history, number=number + 1, state=which))
    return World(true, end, tuple(segments))


def epoch_in(one: RemoteLogSegmentMetadata, offset: int) -> int:
    return [epoch for epoch, start in one.segment_leader_epochs if start <= offset][-1]


@settings(max_examples=400, deadline=None)
@given(world=worlds(), has_broker=st.booleans(), data=st.data())
def test_pieces_tile_the_range_and_follow_one_history(world: World, has_broker: bool, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, world.end))
    end = data.draw(st.integers(start, world.end))
    known = PartitionState(PARTITION, 0, world.end, world.epochs, world.segments, has_broker)
    found = tile(known, start, end)
    assert [offset for piece in found for offset in range(piece.start_offset, piece.end_offset)] == [*range(start, end)]
    for piece in found:
        assert piece.start_offset < piece.end_offset
        if isinstance(piece, SegmentPiece):
            assert piece.segment.state is FINISHED
            assert piece.segment.start_offset <= piece.start_offset
            assert piece.end_offset <= piece.segment.end_offset + 1
            for offset in range(piece.start_offset, piece.end_offset):
                assert epoch_in(piece.segment, offset) == world.epoch_of(offset)
        else:
            assert isinstance(piece, TailPiece if has_broker else Hole)
            # Offsets in a segment of the log's history are never fetched and never missing.
            for one in usable_segments(known):
                for offset in range(max(piece.start_offset, one.start_offset), piece.end_offset):
                    assert offset > one.end_offset or epoch_in(one, offset) != world.epoch_of(offset)
    assert not any(type(one) is type(two) and not isinstance(one, SegmentPiece) for one, two in pairwise(found))


# --- positions and splits ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenSegment:
    directory = str(tmp_path_factory.mktemp("log"))
    return write_segment(directory, batches=60, start_offset=1000, value_bytes=700, partition=PARTITION)


def indexes_of(written: WrittenSegment) -> RemoteIndexes:
    return RemoteIndexes(1000, written.indexes[IndexType.OFFSET], written.indexes[IndexType.TIMESTAMP], b"")


def whole(written: WrittenSegment) -> SegmentPiece:
    return SegmentPiece(written.finished, written.finished.start_offset, written.finished.end_offset + 1)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_positions_enclose_a_piece_closely(written: WrittenSegment, data: st.DataObject) -> None:
    last = written.finished.end_offset
    start = data.draw(st.integers(1000, last))
    end = data.draw(st.integers(start + 1, last + 1))
    piece = placed(SegmentPiece(written.finished, start, end), indexes_of(written))
    stop = piece.end_position or len(written.log)
    found = list(batches(written.log[piece.start_position : stop]))
    assert found[0].base_offset <= start
    assert found[-1].last_offset >= end - 1
    wanted = [one for one in batches(written.log) if one.last_offset >= start and one.base_offset < end]
    # Three intervals of the index, each at most one batch longer than configured.
    assert stop - piece.start_position <= sum(one.size for one in wanted) + 3 * (4096 + wanted[0].size)


@given(
    data=st.data(),
    at_least=st.none() | st.integers(1, 50),
    most=st.none() | st.integers(1, 40),
    split_bytes=st.sampled_from((1, 5000, 20_000, 1 << 20)),
)
@settings(max_examples=150, deadline=None)
def test_divided_pieces_tile_the_original_pieces(
    written: WrittenSegment, data: st.DataObject, at_least: int | None, most: int | None, split_bytes: int
) -> None:
    last = written.finished.end_offset
    start = data.draw(st.integers(1000, last))
    tail_end = data.draw(st.integers(last + 2, last + 80))
    pieces: list[Piece] = [
        SegmentPiece(written.finished, start, last + 1),
        TailPiece("orders", PARTITION.topic_id, 0, last + 1, tail_end),
    ]
    has_indexes = data.draw(st.booleans())
    found = divided(
        pieces,
        lambda _: indexes_of(written) if has_indexes else None,
        at_least=at_least,
        most_records=most,
        split_bytes=split_bytes,
    )
    assert [offset for one in found for offset in range(one.start_offset, one.end_offset)] == [*range(start, tail_end)]
    assert all(one.start_offset < one.end_offset for one in found)
    assert [type(one) for one in found] == sorted((type(one) for one in found), key=[SegmentPiece, TailPiece].index)
    if most is not None:
        assert all(one.end_offset - one.start_offset <= most for one in found)
    if at_least is not None and has_indexes:
        assert len(found) >= min(at_least, tail_end - start)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120) | st.none()), max_size=30),
    task_bytes=st.integers(1, 20_000),
)
def test_tasks_have_neighbouring_pieces_of_one_partition_up_to_a_size(
    sizes: list[tuple[int, int | None]], task_bytes: int
) -> None:
    sizes.sort(key=lambda size: size[0])
    pieces: list[Piece] = []
    for index, records in sizes:
        at = 1000 * len(pieces)
        if records is None:
            pieces.append(TailPiece("orders", PARTITION.topic_id, index, at, at + 10))
        else:
            there = replace(segment(at, at + records), remote_log_segment_id=_segment_id(index, at))
            pieces.append(SegmentPiece(there, at, at + records))
    tasks = joined(pieces, task_bytes=task_bytes)

    def size(task: tuple[Piece, ...]) -> int:
        return sum(
            one.segment.segment_size_in_bytes if isinstance(one, SegmentPiece) else task_bytes + 1 for one in task
        )

    assert [piece for task in tasks for piece in task] == pieces
    assert all(len({piece.topic_partition for piece in task}) == 1 for task in tasks)
    assert all(len(task) == 1 or size(task) <= task_bytes for task in tasks)
    for one, two in pairwise(tasks):
        if one[0].topic_partition == two[0].topic_partition:
            assert size(one) + size(two[:1]) > task_bytes, "no more tasks than needed"


@pytest.mark.parametrize(
    ("segments", "cores", "wanted_mib"),
    [(31, 2, 512), (32, 4, 320), (32, 64, 128), (1, 1, 128), (1000, 2, 512), (0, 2, 128)],
)
def test_tasks_are_larger_if_there_are_fewer_cores_than_data(segments: int, cores: int, wanted_mib: int) -> None:
    there = segment(0, 10)
    there = replace(there, segment_size_in_bytes=64 << 20)
    pieces: list[Piece] = [SegmentPiece(there, 0, 10)] * segments
    assert task_size(pieces, cores=cores) == wanted_mib << 20


def _segment_id(partition: int, start: int) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(TopicIdPartition(PARTITION.topic_id, "orders", partition), UUID(int=start + 1))


def test_a_large_segment_is_cut_into_equal_parts_at_batches(written: WrittenSegment) -> None:
    found = cut_by_bytes(whole(written), indexes_of(written), split_bytes=len(written.log) // 4)
    borders = {one.next_offset for one in batches(written.log)}
    assert len(found) in (4, 5)
    assert all(one.end_offset in borders for one in found)
    sizes = [
        sum(batch.size for batch in batches(written.log) if one.start_offset <= batch.base_offset < one.end_offset)
        for one in found
    ]
    assert max(sizes) < 1.5 * len(written.log) / len(found)


def test_the_index_of_a_small_segment_is_not_fetched(written: WrittenSegment) -> None:
    assert not needs_index(whole(written), parts=1)
    assert needs_index(whole(written), parts=2)
    assert needs_index(whole(written), parts=1, split_bytes=1000)
    assert needs_index(SegmentPiece(written.finished, 1001, 1100), parts=1)


def test_the_number_of_parts_is_proportional_to_the_records() -> None:
    pieces: list[Piece] = [
        TailPiece("orders", PARTITION.topic_id, 0, 0, 900),
        TailPiece("orders", PARTITION.topic_id, 1, 0, 100),
    ]
    assert parts_of(pieces, at_least=10, most_records=None) == [9, 1]
    assert parts_of(pieces, at_least=None, most_records=300) == [3, 1]
    assert parts_of(pieces, at_least=2, most_records=None) == [1, 1]
    assert sum(parts_of(pieces, at_least=7, most_records=400)) >= 7
