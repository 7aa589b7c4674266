"""Plans a read: maps offsets to pieces of segments. Pure decisions.

The pieces tile the range: each offset is in exactly one piece. Offsets between two segments of the tier, or after the
last one, are fetched from the broker. The plan stays valid when records move between the tiers during the job, because
the offsets of a piece are fixed, and its location is only a preference.

A segment is usable if it is finished and part of the log's history, see `kbroker.tiered.plan`. A piece of it extends
only as far as its leader epochs equal those of the log at the same offsets. The first rule alone does not ensure that
for a segment that begins below the log's first epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from typing import Final, NamedTuple, TypeAlias

from kbroker.spark.pieces import Piece, SegmentPiece, TailPiece, Task
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.plan import Lineage, clipped_epochs, without_empty_epochs

SPLIT_BYTES: Final = 64 << 20
"""Segments are read in pieces of about this size, so that a few large segments can keep many cores busy."""
LEAST_TASK_BYTES: Final = 128 << 20
"""Smaller pieces always share a task up to this size, the default of Spark's file sources
(spark.sql.files.maxPartitionBytes): a task costs about 0.1 s of processor time besides its records.
"""
MOST_TASK_BYTES: Final = 512 << 20

Epochs: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What is known of a partition when a read is planned.

    Units  end_offset is exclusive: the high watermark, or the end of the tier if no broker is named
    Shape  segments are all known ones, in any state and of any history; leader_epochs is the log's history,
           (leader_epoch, start_offset) ascending; has_broker says whether offsets outside the tier can be fetched
    """

    id: TopicIdPartition
    log_start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    segments: tuple[RemoteLogSegmentMetadata, ...]
    has_broker: bool


class Hole(NamedTuple):
    """Offsets that cannot be read from anywhere. Units: end_offset is exclusive."""

    start_offset: int
    end_offset: int


def usable_segments(state: PartitionState) -> list[RemoteLogSegmentMetadata]:
    """The finished segments of the log's history, by start offset."""
    lineage = Lineage(state.leader_epochs, log_end_offset=state.end_offset)
    found = [one for one in state.segments if one.state is FINISHED and one in lineage]
    return sorted(found, key=lambda one: (one.start_offset, one.end_offset, one.event_timestamp_ms))


def tile(state: PartitionState, start_offset: int, end_offset: int) -> list[Piece | Hole]:
    """The pieces that tile [start_offset, end_offset), in order.

    Shape  holes occur only without a broker; with a broker, those offsets are pieces to be fetched
    """
    usable = usable_segments(state)
    history = without_empty_epochs(state.leader_epochs)
    found: list[Piece | Hole] = []
    at, first = start_offset, 0
    while at < end_offset:
        while first < len(usable) and usable[first].end_offset < at:
            first += 1  # it ends before `at`
        best, best_end, following = None, at, end_offset
        for one in islice(usable, first, None):
            if one.start_offset > at:
                following = min(following, one.start_offset)
                break
            end = _agreed_end(one.segment_leader_epochs, history, at, min(one.end_offset + 1, end_offset))
            if end > best_end:
                best, best_end = one, end
        if best is not None:
            found.append(SegmentPiece(best, at, best_end))
            at = best_end
            continue
        # Merge adjacent ranges that are not in the tier.
        previous = found[-1] if found else None
        if isinstance(previous, TailPiece | Hole) and previous.end_offset == at:
            found.pop()
            at = previous.start_offset
        found.append(
            TailPiece(state.id.topic, state.id.topic_id, state.id.partition, at, following)
            if state.has_broker
            else Hole(at, following)
        )
        at = following
    return found


def _agreed_end(segment_epochs: Epochs, history: Epochs, start: int, end: int) -> int:
    """How far, from `start` on, a segment's epochs equal the log's; `start` if they differ there already."""
    here, there = clipped_epochs(segment_epochs, start, end), clipped_epochs(history, start, end)
    for one, other in zip_longest(here, there, fillvalue=(-1, end)):
        if one != other:
            return min(one[1], other[1])
    return end


# --- positions in a segment -------------------------------------------------------------------------------------------


def placed(piece: SegmentPiece, indexes: RemoteIndexes) -> SegmentPiece:
    """The piece with its byte positions from the segment's offset index."""
    is_to_the_end = piece.end_offset > piece.segment.end_offset
    return replace(
        piece,
        start_position=indexes.position_for(piece.start_offset),
        end_position=None if is_to_the_end else indexes.end_position_for(piece.end_offset - 1),
    )


def needs_index(piece: SegmentPiece, *, parts: int, split_bytes: int = SPLIT_BYTES) -> bool:
    """Whether the segment's offset index helps to read the piece."""
    segment = piece.segment
    is_whole = piece.start_offset <= segment.start_offset and piece.end_offset > segment.end_offset
    return not is_whole or parts > 1 or segment.segment_size_in_bytes > split_bytes


# --- splitting --------------------------------------------------------------------------------------------------------


def parts_of(pieces: Sequence[Piece], *, at_least: int | None, most_records: int | None) -> list[int]:
    """The number of parts with equally many offsets for each piece, counted as in the Kafka source."""
    counts = [piece.end_offset - piece.start_offset for piece in pieces]
    parts = [1] * len(pieces)
    if most_records is not None:
        parts = [max(1, -(-count // most_records)) for count in counts]
    if at_least is not None and sum(parts) < at_least:
        total = sum(counts)
        wanted = [max(1, round(at_least * count / total)) for count in counts]
        parts = [max(one, other) for one, other in zip(parts, wanted, strict=True)]
        # Rounding may give too few parts: cut the largest ones again.
        while sum(parts) < at_least and any(count > part for count, part in zip(counts, parts, strict=True)):
            largest = max(range(len(parts)), key=lambda at: counts[at] / parts[at])
            parts[largest] += 1
    return [min(part, count) for part, count in zip(parts, counts, strict=True)]


def cut(piece: Piece, parts: int) -> list[Piece]:
    """Cuts a piece into parts with equally many offsets."""
    count = piece.end_offset - piece.start_offset
    borders = [piece.start_offset + count * number // parts for number in range(parts + 1)]
    return [replace(piece, start_offset=start, end_offset=end) for start, end in pairwise(borders) if start < end]


def cut_by_bytes(piece: SegmentPiece, indexes: RemoteIndexes, split_bytes: int = SPLIT_BYTES) -> list[SegmentPiece]:
    """Cuts a piece into parts of about equal size, none much larger than `split_bytes`, at the ends of batches."""
    whole = placed(piece, indexes)
    end = piece.segment.segment_size_in_bytes if whole.end_position is None else whole.end_position
    size = end - whole.start_position
    count = -(-size // split_bytes)
    borders = {piece.start_offset, piece.end_offset}
    for number in range(1, count):
        entry = indexes.floor_position(whole.start_position + size * number // count)
        if entry is not None and piece.start_offset < entry.last_offset + 1 < piece.end_offset:
            borders.add(entry.last_offset + 1)
    ordered = sorted(borders)
    return [replace(piece, start_offset=one, end_offset=two) for one, two in pairwise(ordered)]


def divided(
    pieces: Iterable[Piece],
    indexes_of: Callable[[RemoteLogSegmentMetadata], RemoteIndexes | None],
    *,
    at_least: int | None = None,
    most_records: int | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> list[Piece]:
    """The pieces cut for many cores, with their positions. They tile the same offsets as the given pieces.

    `indexes_of` returns a segment's indexes, or None if they cannot be read. Then the task reads from the segment's
    beginning, including bytes that it does not need.
    """
    wanted = list(pieces)
    found: list[Piece] = []
    known: dict[object, RemoteIndexes | None] = {}
    for piece, parts in zip(wanted, parts_of(wanted, at_least=at_least, most_records=most_records), strict=True):
        if isinstance(piece, TailPiece) or not needs_index(piece, parts=parts, split_bytes=split_bytes):
            found += cut(piece, parts)
            continue
        segment_id = piece.segment.remote_log_segment_id
        if segment_id not in known:
            known = {segment_id: indexes_of(piece.segment)}  # pieces of a segment are adjacent
        indexes = known[segment_id]
        if indexes is None:
            found += [piece] if most_records is None else cut(piece, parts)
            continue
        smaller = cut(piece, parts) if parts > 1 else cut_by_bytes(piece, indexes, split_bytes)
        found += [placed(one, indexes) for one in smaller if isinstance(one, SegmentPiece)]
    return found


def task_size(pieces: Iterable[Piece], *, cores: int) -> int:
    """The size up to which pieces share a task: about two equal tasks for each core, within the limits."""
    total = sum(_size(piece) for piece in pieces if isinstance(piece, SegmentPiece))
    # One piece more than the average: otherwise rounding down leaves a rest that occupies one core at the end.
    return min(max(total // (2 * cores) + SPLIT_BYTES, LEAST_TASK_BYTES), MOST_TASK_BYTES)


def joined(pieces: Iterable[Piece], *, task_bytes: int) -> list[Task]:
    """The pieces of each task: neighbours in one partition that have at most `task_bytes` together."""
    tasks: list[Task] = []
    room, partition = 0, None
    for piece in pieces:
        size = task_bytes if isinstance(piece, TailPiece) else _size(piece)
        if piece.topic_id_partition == partition and size <= room:
            tasks[-1] += (piece,)
            room -= size
        else:
            tasks.append((piece,))
            room, partition = task_bytes - size, piece.topic_id_partition
    return tasks


def _size(piece: SegmentPiece) -> int:
    end = piece.segment.segment_size_in_bytes if piece.end_position is None else piece.end_position
    return end - piece.start_position
