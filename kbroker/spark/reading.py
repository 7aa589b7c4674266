"""What an executor does with one piece: read it where the plan says, or where its records are now.

A segment may disappear between planning and reading: it expires, or another copy of the same offsets replaces it. Then
the reader looks up the offsets again. If nothing has them, it raises an error that says whether they expired. With
failOnDataLoss=false, missing records are skipped with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import (
    KbrokerSourceError,
    MissingObject,
    RecordsExpired,
    UnknownTopic,
    expired,
    same_topics,
)
from kbroker.spark.pieces import Piece, SegmentPiece, TailPiece, Task
from kbroker.spark.segment_reading import read_segment
from kbroker.spark.stores import open_store
from kbroker.spark.worker import settle

if TYPE_CHECKING:
    from kbroker.spark.client import BrokerClient
    from kbroker.spark.options import SourceOptions
    from kbroker.spark.plan import PartitionState

logger = logging.getLogger("kbroker.spark")

LOOKS: Final = 3
"""How often a piece is looked up. Segments that keep disappearing after that are being deleted on purpose."""


@dataclass(frozen=True)
class TaskReader:
    """What Spark sends to a worker besides the task's pieces. A worker that unpickles it is settled, see
    kbroker.spark.worker: Spark sends the pieces only afterwards.
    """

    options: SourceOptions
    columns: Sequence[str]

    def __setstate__(self, state: dict[str, object]) -> None:
        settle()
        self.__dict__.update(state)

    def rows(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The rows of each piece; see `read_piece`."""
        for piece in task:
            yield from read_piece(self.options, piece, self.columns)


def read_piece(options: SourceOptions, piece: Piece, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. Errors: KbrokerSourceError."""
    return _read(options, piece, columns, LOOKS)


def _read(options: SourceOptions, piece: Piece, columns: Sequence[str], looks: int) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, TailPiece):
        yield from _read_tail(options, piece, columns)
        return
    assert options.store is not None, "a segment without a store"
    try:
        yield from read_segment(open_store(options.store), piece, columns, chunk_bytes=options.chunk_bytes)
    except MissingObject as error:
        offset = piece.start_offset if error.offset is None else error.offset
        if offset < piece.end_offset:
            rest = replace(piece, start_offset=offset, start_position=0)
            yield from _look_again(options, rest, columns, error, looks)
        elif options.fail_on_data_loss:
            raise  # all rows were returned, but the batch that would have confirmed the last of them is gone


def _read_tail(options: SourceOptions, piece: TailPiece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from kbroker.spark.client import EARLIEST, kept_client  # noqa: PLC0415  (only imported if a client is needed)
    from kbroker.spark.fetching import offset_now  # noqa: PLC0415

    assert options.client is not None, "records to be fetched without a broker"
    offset = piece.start_offset
    while offset < piece.end_offset:
        try:
            with kept_client(options.client) as client:
                rest = replace(piece, start_offset=offset)
                yield from read_tail(client, rest, columns, chunk_bytes=options.chunk_bytes)
            return
        except RecordsExpired as error:
            if options.fail_on_data_loss:
                raise
            with kept_client(options.client) as client:
                start, offset = error.offset or offset, offset_now(client, piece, EARLIEST)
            _skip(options, piece, start, offset, error)


def read_tail(
    client: BrokerClient, piece: TailPiece, columns: Sequence[str], *, chunk_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece that the broker sends, in the order of their offsets. If this raises, all rows below the
    error's offset have been yielded.

    Errors  those of `fetch_batches`, and UnknownCodec, UnrepresentableRecord
    """
    from kbroker.spark.fetching import check_topic, damaged, fetch_batches  # noqa: PLC0415

    check_topic(client, piece)
    rows = RowsBuilder(
        piece,
        columns,
        error_at=lambda kind, what, offset: damaged(piece, offset, what, kind),
        rows_bytes=chunk_bytes,
    )
    try:
        for batch in fetch_batches(client, piece, max_bytes=chunk_bytes):
            if not batch.is_control:
                rows.add(batch)
            if rows.is_full:
                yield from rows.take()
    except KbrokerSourceError:
        yield from rows.take()
        raise
    yield from rows.take()


def _look_again(
    options: SourceOptions, piece: SegmentPiece, columns: Sequence[str], missing: MissingObject, looks: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece whose segment is gone, from their current location."""
    from kbroker.spark.plan import Hole, tile  # noqa: PLC0415

    state, gone = _state_now(options, piece), piece.segment.remote_log_segment_id
    start = piece.start_offset
    if state is None:
        _skip(options, piece, start, piece.end_offset, missing)
        return
    if state.log_start_offset > start:
        error = expired(piece.topic_partition, start, log_start_offset=state.log_start_offset)
        _skip(options, piece, start, state.log_start_offset, error)
        start = state.log_start_offset
    tiled: Iterable[Piece | Hole] = tile(state, start, piece.end_offset)
    if options.is_committed_only:
        from kbroker.spark.committed import AbortedTransactions  # noqa: PLC0415

        tiled = AbortedTransactions(options).marked(state, tiled)
    for found in tiled:
        is_same = isinstance(found, SegmentPiece) and found.segment.remote_log_segment_id == gone
        if isinstance(found, Hole) or is_same or looks <= 1:
            _skip(options, piece, found.start_offset, found.end_offset, missing)
        else:
            yield from _read(options, found, columns, looks - 1)


def _state_now(options: SourceOptions, piece: SegmentPiece) -> PartitionState | None:
    """The current state of the piece's partition; None if nothing is left of it. Errors: TopicRecreated, …"""
    from kbroker.spark.inventory import open_inventory  # noqa: PLC0415
    from kbroker.spark.options import Subscription  # noqa: PLC0415

    wanted, partition = piece.topic_id_partition, piece.topic_partition
    with ExitStack() as stack:
        inventory = open_inventory(options, stack)
        try:
            extent = inventory.extent(Subscription(partitions=(partition,)))
        except UnknownTopic:
            if options.client is not None:
                raise
            return None
        same_topics({wanted.topic: wanted.topic_id}, extent.ids.items())
        return inventory.states([partition], extent.bounds)[0]


def _skip(options: SourceOptions, piece: Piece, start: int, end: int, why: KbrokerSourceError) -> None:
    """Skip the offsets [start, end) of a piece with a warning. Errors: `why` unless failOnDataLoss=false."""
    if options.fail_on_data_loss:
        raise why
    what = "%s-%d: offsets %d to %d are skipped (failOnDataLoss=false): %s"
    logger.warning(what, *piece.topic_partition, start, min(end, piece.end_offset) - 1, why)
