"""`isolation.level=read_committed`: which records of a piece belong to aborted transactions.

A broker names them in its answers to Fetch. For a segment that is read from the store, the transaction indexes name
them. A transaction's entry is in the segment of its marker, so the indexes of later segments are read too, until one
shows that all transactions of the piece are decided. Where the tier ends, or has a gap, the broker is asked once for
the transactions that extend beyond that offset. Without a broker nothing is read that a transaction without a marker
in the tier could follow: the newest producer snapshot names the open ones.

The driver does this for each piece, because a task has no view of the other segments.

Source  KIP-98, KIP-405; RemoteLogManager.addAbortedTransactions of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Final

from kbroker.spark.errors import error_of_store, segment_error
from kbroker.spark.options import SourceOptions
from kbroker.spark.pieces import Aborted, Piece, SegmentPiece, TailPiece
from kbroker.spark.plan import Hole, PartitionState, usable_segments
from kbroker.spark.stores import open_store
from kbroker.storage.index import TRANSACTION_ENTRY
from kbroker.storage.producer_state import parse_snapshot
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
)

FOREVER: Final = (1 << 63) - 1
KNOWN_INDEXES: Final = 1_000
"""Transaction indexes that a planner keeps; a stream asks for the newest ones again with each batch."""


class AbortedTransactions:
    """Finds the aborted transactions of pieces. Errors: KbrokerSourceError."""

    def __init__(self, options: SourceOptions) -> None:
        self._client = options.client
        self._storage = None if options.store is None else open_store(options.store)
        self._known: dict[object, bytes] = {}

    def marked(self, state: PartitionState, pieces: Iterable[Piece | Hole]) -> Iterator[Piece | Hole]:
        """The pieces of one partition, ready to be read without aborted records."""
        tier: _Tier | None = None
        for piece in pieces:
            if isinstance(piece, TailPiece):
                yield replace(piece, is_committed_only=True)
            elif isinstance(piece, SegmentPiece):
                if tier is None:
                    tier = _Tier(usable_segments(state))
                yield replace(piece, aborted=tuple(self._of_piece(piece, tier)))
            else:
                yield piece

    def _of_piece(self, piece: SegmentPiece, tier: _Tier) -> list[Aborted]:
        found: dict[tuple[int, int], Aborted] = {}
        run_end = tier.run_end(piece.start_offset)
        for segment in tier.indexed_from(piece.start_offset):
            if segment.start_offset >= run_end:
                break
            is_decided = False
            for _, producer_id, first, last, stable in TRANSACTION_ENTRY.iter_unpack(self._index(segment)):
                if last >= piece.start_offset and first < piece.end_offset:
                    found[producer_id, first] = Aborted(producer_id, first, last)
                is_decided = is_decided or stable >= piece.end_offset
            if is_decided:
                return list(found.values())
        if run_end not in tier.beyond:
            tier.beyond[run_end] = self._beyond(piece, run_end)
        for one in tier.beyond[run_end]:
            if one.first_offset < piece.end_offset:
                found.setdefault((one.producer_id, one.first_offset), one)
        return list(found.values())

    def _index(self, segment: RemoteLogSegmentMetadata) -> bytes:
        if segment.txn_index_empty:
            return b""
        key = segment.remote_log_segment_id
        data = self._known.get(key)
        if data is None:
            assert self._storage is not None, "a segment without a store"
            try:
                data = self._storage.fetch_index(segment, IndexType.TRANSACTION)
            except RemoteResourceNotFound:
                data = b""  # no transaction was aborted
            except RemoteStorageError as error:
                kind, said = error_of_store(error)
                raise segment_error(kind, said, segment, self._storage, offset=segment.start_offset) from error
            if len(self._known) >= KNOWN_INDEXES:
                self._known.clear()
            self._known[key] = data = data[: len(data) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size]
        return data

    def _beyond(self, piece: SegmentPiece, offset: int) -> list[Aborted]:
        """The aborted transactions that began before this offset and end at or after it, as the broker knows them."""
        if self._client is None:
            return []
        from kbroker.spark.client import kept_client  # noqa: PLC0415  (only imported if a client is needed)

        id_ = piece.topic_id_partition
        with kept_client(self._client) as client:
            fetched = client.fetch(
                id_.topic_id, piece.topic_partition, offset, max_bytes=1, wait_ms=0, is_committed_only=True
            )
        return [
            Aborted(producer_id, first_offset, FOREVER)
            for first_offset, producer_id in fetched.aborted
            if first_offset < offset
        ]


class _Tier:
    """The usable segments of a partition, by start offset.

    Shape  beyond are the transactions that extend beyond an offset where a run of adjacent segments ends
    """

    def __init__(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        self.beyond: dict[int, list[Aborted]] = {}
        self._indexed = [one for one in segments if not one.txn_index_empty]
        self._indexed_ends = list(accumulate((one.end_offset for one in self._indexed), max))
        self._run_starts: list[int] = []
        self._run_ends: list[int] = []
        for one in segments:
            if not self._run_ends or one.start_offset > self._run_ends[-1]:
                self._run_starts.append(one.start_offset)
                self._run_ends.append(one.end_offset + 1)
            else:
                self._run_ends[-1] = max(self._run_ends[-1], one.end_offset + 1)

    def run_end(self, offset: int) -> int:
        """Where the run of adjacent segments that has this offset ends."""
        return self._run_ends[bisect_right(self._run_starts, offset) - 1]

    def indexed_from(self, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        """The segments with a transaction index that end at or after this offset."""
        return islice(self._indexed, bisect_left(self._indexed_ends, offset), None)


def decided_end(storage: RemoteStorageManager, newest: RemoteLogSegmentMetadata) -> int:
    """The offset below which all transactions of the tier are decided, by the producer snapshot of its newest segment.

    Errors  RemoteStorageError; ValueError for a damaged snapshot
    """
    entries = parse_snapshot(storage.fetch_index(newest, IndexType.PRODUCER_SNAPSHOT))
    opened = [one.current_txn_first_offset for one in entries if one.current_txn_first_offset >= 0]
    return min([newest.end_offset + 1, *opened])
