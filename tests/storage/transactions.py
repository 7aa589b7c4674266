"""Transactions in a log, as coordinators and producers write them, and what a reader of committed records sees."""

from __future__ import annotations

import random
from pathlib import Path

from kbroker.storage.control_records import marker_batch
from kbroker.storage.log import Log
from kbroker.storage.transaction_index import AbortedTransaction
from tests.storage.logs import batch


class Producers:
    """Transactional producers that write into one log; `aborted` are the entries that the indexes must have."""

    def __init__(self, log: Log, *, epoch_for_each_transaction: bool = False) -> None:
        self.log = log
        self.aborted: list[AbortedTransaction] = []
        self.open: dict[int, int] = {}  # first offset by producer
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self._bumps = epoch_for_each_transaction

    def write(self, producer_id: int, *, count: int = 1) -> int:
        """Write one transactional batch; returns its first offset."""
        sequence = self.sequences.get(producer_id, 0)
        sent = batch(
            count,
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0),
            base_sequence=sequence,
            is_transactional=True,
        )
        self.sequences[producer_id] = sequence + count
        plan = self.log.append(sent, leader_epoch=0, timestamp_ms=0)
        self.open.setdefault(producer_id, plan.first_offset)
        return plan.first_offset

    def end(self, producer_id: int, *, commit: bool = False, coordinator_epoch: int = 0) -> int:
        """Write a marker; returns its offset."""
        epoch = self.epochs.get(producer_id, 0) + self._bumps
        if self._bumps:
            self.epochs[producer_id], self.sequences[producer_id] = epoch, 0
        sent = marker_batch(
            producer_id, epoch, is_commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=1_000
        )
        plan = self.log.plan_marker(sent, leader_epoch=0, timestamp_ms=0, transaction_version=2 if self._bumps else 0)
        self.log.write(plan)
        self.log.commit(plan)
        first = self.open.pop(producer_id, None)
        if first is not None and not commit:
            stable = min(self.open.values(), default=plan.first_offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, plan.first_offset, stable))
        return plan.first_offset

    def write_history(self, rng: random.Random, steps: int, *, producers: int = 4) -> None:
        """Interleaved transactions of several producers, half of them aborted."""
        for _ in range(steps):
            producer_id = rng.randrange(producers)
            if producer_id in self.open and rng.random() < 0.4:
                self.end(producer_id, commit=rng.random() < 0.5)
            else:
                self.write(producer_id, count=rng.randint(1, 3))


def indexed(log: Log) -> list[AbortedTransaction]:
    """Every entry of the transaction indexes of a log."""
    found = []
    for segment in log.segments:
        some, _ = segment.transaction_index.between(0, 1 << 62)
        found += some
    return found


def txnindex_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.txnindex"))
