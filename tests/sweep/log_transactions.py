"""The transactions of a log, recomputed from its batches in the simplest way, for the judge of recovered logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kbroker.storage.log import Log
from kbroker.storage.transaction_index import AbortedTransaction
from kbroker.testing.model_reader import is_abort
from wire.record_batch import RecordBatch


def transactions_of(batches: Iterable[RecordBatch]) -> tuple[list[AbortedTransaction], dict[int, int]]:
    """The aborted transactions of these batches, and the first offsets of the open ones by producer id."""
    opened: dict[int, int] = {}
    aborted = []
    for batch in batches:
        if not batch.is_transactional:
            continue
        if not batch.is_control:
            opened.setdefault(batch.producer_id, batch.base_offset)
        elif (first := opened.pop(batch.producer_id, None)) is not None and is_abort(batch):
            stable = min(opened.values(), default=batch.next_offset)
            aborted.append(AbortedTransaction(batch.producer_id, first, batch.last_offset, stable))
    return aborted, opened


def judge_transactions(log: Log, found: Sequence[RecordBatch]) -> Iterator[str]:
    """The index has each aborted transaction, and the producers each open one, that the batches of the log show.

    The first batches of a transaction may be deleted; then its start is known only by the index or a snapshot.
    """
    aborted, opened = transactions_of(found)
    is_whole = not found or found[0].base_offset == 0
    indexed = log.aborted_between(log.local_log_start_offset, log.log_end_offset)
    if is_whole and log.local_log_start_offset == 0:
        if list(indexed) != sorted(aborted, key=lambda one: one.first_offset):
            yield f"the batches show the aborted transactions {aborted}, the indexes {indexed}"
    else:
        ends = {(one.producer_id, one.last_offset) for one in indexed}
        for one in aborted:
            # A search begins at the local start, so a marker before it is not among its results.
            if one.last_offset >= log.local_log_start_offset and (one.producer_id, one.last_offset) not in ends:
                yield f"the indexes lack {one}"
    known = {
        entry.producer_id: entry.current_txn_first_offset
        for entry in log.producers.producers.values()
        if entry.current_txn_first_offset >= 0
    }
    for producer_id, first in opened.items():
        if known.get(producer_id) != first and (is_whole or known.get(producer_id, first + 1) > first):
            yield f"producer {producer_id} has a transaction from {first}, the log knows {known.get(producer_id)}"
    ended = {batch.producer_id for batch in found if batch.is_control} - opened.keys()
    for producer_id in known.keys() & ended:
        yield f"the transaction of producer {producer_id} from {known[producer_id]} has ended"
    unstable = log.producers.first_unstable_offset
    if opened and (unstable is None or unstable > min(opened.values())):
        yield f"the first unstable offset is {unstable}, but the transactions {opened} are open"
