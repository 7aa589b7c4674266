"""What an executor does with one piece: read it where the plan says, or where its records are now.

A segment may disappear between planning and reading: it expires, or another copy of the same offsets replaces it. Then
the reader looks up the offsets again. If nothing has them, it raises an error that says whether they expired. With
failOnDataLoss=false, missing records are skipped with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kbroker.spark.columns import COLUMNS
from kbroker.spark.errors import KbrokerSourceError, MissingObject, OffsetsNotCovered, RecordsExpired
from kbroker.spark.pieces import Piece, SegmentPiece, TailPiece
from kbroker.spark.segment_reading import read_segment
from kbroker.spark.stores import StoreOptions, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.options import SourceOptions
    from kbroker.spark.plan import PartitionState

logger = logging.getLogger("kbroker.spark")

LOOKS: Final = 3
"""How often a piece is looked up. Segments that keep disappearing after that are being deleted on purpose."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What executors need to know of a job. Shape: store and client as in SourceOptions."""

    store: StoreOptions | None
    client: Mapping[str, Any] | None = field(repr=False)
    chunk_bytes: int
    fail_on_data_loss: bool


def reading_of(options: SourceOptions) -> Reading:
    """The part of a job's options that executors need."""
    return Reading(options.store, options.client, options.chunk_bytes, options.fail_on_data_loss)


def read_piece(reading: Reading, piece: Piece, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. Errors: KbrokerSourceError."""
    return _read(reading, piece, columns, LOOKS)


def _read(reading: Reading, piece: Piece, columns: Sequence[str], looks: int) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, TailPiece):
        yield from _read_tail(reading, piece, columns)
        return
    assert reading.store is not None, "a segment without a store"
    try:
        yield from read_segment(open_store(reading.store), piece, columns, chunk_bytes=reading.chunk_bytes)
    except MissingObject as error:
        offset = piece.start_offset if error.offset is None else error.offset
        if offset >= piece.end_offset:
            # All rows were returned; only the batch that would have confirmed the last of them is gone.
            if reading.fail_on_data_loss:
                raise
            return
        rest = replace(piece, start_offset=offset, start_position=0)
        yield from _look_again(reading, rest, columns, error, looks)


def _read_tail(reading: Reading, piece: TailPiece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from kbroker.spark.client import EARLIEST, kept_client  # noqa: PLC0415  (only imported if a client is needed)
    from kbroker.spark.fetching import offset_now  # noqa: PLC0415
    from kbroker.spark.tail_reading import read_tail  # noqa: PLC0415

    assert reading.client is not None, "records to be fetched without a broker"
    offset = piece.start_offset
    while offset < piece.end_offset:
        try:
            with kept_client(reading.client) as client:
                rest = replace(piece, start_offset=offset)
                yield from read_tail(client, rest, columns, chunk_bytes=reading.chunk_bytes)
            return
        except RecordsExpired as error:
            if reading.fail_on_data_loss or error.offset is None:
                raise
            with kept_client(reading.client) as client:
                offset = offset_now(client, piece, EARLIEST)
            _warn_skipped(piece, error.offset, min(offset, piece.end_offset), error)


def _look_again(
    reading: Reading, piece: SegmentPiece, columns: Sequence[str], missing: MissingObject, looks: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece whose segment is gone, from their current location."""
    from kbroker.spark.fetching import expired  # noqa: PLC0415
    from kbroker.spark.plan import Hole, tile  # noqa: PLC0415

    state = _state_now(reading, piece)
    start = piece.start_offset
    if state is None:
        if reading.fail_on_data_loss:
            raise missing
        _warn_skipped(piece, start, piece.end_offset, missing)
        return
    if state.log_start_offset > start:
        error = expired(piece.topic_partition, start, log_start_offset=state.log_start_offset)
        if reading.fail_on_data_loss:
            raise error from missing
        _warn_skipped(piece, start, min(state.log_start_offset, piece.end_offset), error)
        start = state.log_start_offset
    for found in tile(state, start, piece.end_offset) if start < piece.end_offset else ():
        is_same = isinstance(found, SegmentPiece) and _is_same(found, piece)
        if isinstance(found, Hole) or is_same or looks <= 1:
            if reading.fail_on_data_loss:
                raise missing
            _warn_skipped(piece, found.start_offset, found.end_offset, missing)
        else:
            yield from _read(reading, found, columns, looks - 1)


def _is_same(one: SegmentPiece, other: SegmentPiece) -> bool:
    return one.segment.remote_log_segment_id == other.segment.remote_log_segment_id


def _state_now(reading: Reading, piece: SegmentPiece) -> PartitionState | None:
    """The current state of the piece's partition; None if nothing is left of it. Errors: TopicRecreated, …"""
    from kbroker.spark.errors import UnknownTopic  # noqa: PLC0415
    from kbroker.spark.inventory import open_inventory, same_topics  # noqa: PLC0415
    from kbroker.spark.options import Subscription  # noqa: PLC0415

    wanted, partition = piece.topic_id_partition, piece.topic_partition
    with ExitStack() as stack:
        inventory = open_inventory(reading.client, reading.store, stack)
        try:
            topics = inventory.topics(Subscription(partitions=(partition,)))
        except UnknownTopic:
            if inventory.has_broker:
                raise
            return None
        same_topics({wanted.topic: wanted.topic_id}, [(wanted.topic, topics[wanted.topic][0])])
        bounds = inventory.bounds([partition])
        return inventory.states([partition], bounds)[0]


def _warn_skipped(piece: Piece, start: int, end: int, why: KbrokerSourceError) -> None:
    if start < end:
        what = "%s-%d: offsets %d to %d are skipped (failOnDataLoss=false): %s"
        logger.warning(what, *piece.topic_partition, start, end - 1, why)


def not_covered(state: PartitionState, start: int, end: int) -> OffsetsNotCovered:
    """The error for offsets that are in no segment, if no broker is named."""
    return OffsetsNotCovered(
        f"no finished segment in the store has the offsets {start} to {end - 1}",
        remedy="name the broker (kafka.bootstrap.servers), which may have them, or run kbroker tier scrub;"
        " failOnDataLoss=false skips them",
        at=(state.id.topic, state.id.partition),
        offset=start,
    )
