"""Follows the transactions of a log while its batches are read: which data is aborted, and which markers are needed.

Aborted data may be dropped at once. A marker is needed as long as the log has a batch of its transaction; a consumer
that reads the batch needs the marker to know the end of the transaction. After that the marker gets a delete horizon,
as a tombstone does, because a consumer may still be reading what was there before.

Source  CleanedTransactionMetadata of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbroker.storage.producer_state import read_marker
from kbroker.storage.transaction_index import AbortedTransaction
from wire.record_batch import RecordBatch


@dataclass(slots=True)
class _Ongoing:
    transaction: AbortedTransaction
    has_data: bool = False


class CleanedTransactions:
    """See the module's docstring. `kept` are the aborted transactions whose markers the log keeps with their data."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.kept: list[AbortedTransaction] = []
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, _Ongoing] = {}
        self._committed: set[int] = set()

    def may_drop(self, batch: RecordBatch) -> bool:
        """Note the next batch. Whether it is aborted data, or a marker of a transaction without any batch."""
        while self._coming and self._coming[-1].first_offset <= batch.last_offset:
            transaction = self._coming.pop()
            self._aborted.setdefault(transaction.producer_id, _Ongoing(transaction))
        if batch.is_control:
            return self._end(batch)
        if not batch.is_transactional:
            return False
        ongoing = self._aborted.get(batch.producer_id)
        if ongoing is None:
            self._committed.add(batch.producer_id)
            return False
        ongoing.has_data = True
        return True

    def _end(self, batch: RecordBatch) -> bool:
        if not batch.record_count:
            return True  # its marker was removed before
        marker = read_marker(batch.buffer, batch.position)
        if marker is None:
            return False
        if marker.is_commit:
            is_needed = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not is_needed
        ongoing = self._aborted.pop(batch.producer_id, None)
        if ongoing is None or not ongoing.has_data:
            return True
        self.kept.append(ongoing.transaction)
        return False
