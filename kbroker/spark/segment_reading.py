"""Reads the records of a piece of a remote segment, straight from the store.

The object is read in ranges of `chunk_bytes`. Every batch is checked (its size, its CRC, its place among the others)
before one of its records becomes a row, so what a bit, or a stranger, made of an object is an error and never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa

from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import DamagedObject, KbrokerSourceError, MissingObject, StoreUnavailable, object_of
from kbroker.spark.pieces import SegmentPiece
from kbroker.tiered.api import (
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
)
from wire.errors import Malformed
from wire.record_batch import RecordBatch, batches

DEFAULT_CHUNK_BYTES: Final = 8 << 20


def is_visible(batch: RecordBatch) -> bool:
    """Whether a batch's records are rows. Markers are none; records of aborted transactions will not be either."""
    return not batch.is_control


def read_segment(
    storage: RemoteStorageManager,
    piece: SegmentPiece,
    columns: Sequence[str] = COLUMNS,
    *,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    visible: Callable[[RecordBatch], bool] = is_visible,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets.

    Errors  MissingObject, StoreUnavailable, DamagedObject, UnknownCodec, UnrepresentableRecord
    """
    partition = piece.topic_id_partition
    rows = RowsBuilder(
        partition.topic,
        partition.partition,
        columns,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset,
        rows_bytes=chunk_bytes,
    )

    def error(kind: type[KbrokerSourceError], what: str, remedy: str, offset: int) -> KbrokerSourceError:
        return kind(
            what,
            remedy=remedy,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            object_name=object_of(piece.segment, storage),
        )

    try:
        with closing(storage.fetch_log_segment(piece.segment, piece.start_position)) as stream:
            data = stream.read()
    except RemoteResourceNotFound as failure:
        raise error(MissingObject, str(failure), "look for it with kbroker tier scrub", piece.start_offset) from failure
    except RemoteStorageError as failure:
        raise error(StoreUnavailable, str(failure), "see that the store answers", piece.start_offset) from failure
    found = batches(data)
    offset = piece.start_offset
    for batch in found:
        if batch.base_offset >= piece.end_offset:
            return
        if not batch.crc_is_valid():
            raise error(DamagedObject, "a batch's CRC is wrong", "restore the object", batch.base_offset)
        if visible(batch):
            try:
                rows.add(batch)
            except Malformed as failure:
                raise error(DamagedObject, str(failure), "restore the object", batch.base_offset) from failure
        offset = batch.next_offset
        made = rows.take()
        if made is not None:
            yield made
    if found.error is not None:
        raise error(DamagedObject, str(found.error), "restore the object", offset)
