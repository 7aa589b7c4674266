"""The rows of a range that is fetched from the broker, see `fetching`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from kbroker.spark.client import BrokerClient
from kbroker.spark.columns import COLUMNS, RowsBuilder
from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.fetching import check_topic, damaged, fetch_batches
from kbroker.spark.pieces import TailPiece


def read_tail(
    client: BrokerClient,
    piece: TailPiece,
    columns: Sequence[str] = COLUMNS,
    *,
    chunk_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in the order of their offsets. If this raises, all rows below the error's offset have been
    yielded.

    Errors  those of `fetch_batches`, and UnknownCodec, UnrepresentableRecord
    """
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
