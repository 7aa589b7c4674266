"""Generated histories of a compacted log: keys, tombstones, codecs, producers with and without transactions.

The model knows each record with its offset and fate, so it can say what a consumer of committed records must end with.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from kbroker.storage.control_records import marker_batch
from kbroker.storage.log import Log
from kbroker.storage.producer_state import read_marker
from kbroker.storage.transaction_index import AbortedTransaction
from tests.storage.logs import read_all
from wire.compression import Codec
from wire.record_batch import Record, RecordBatch, build_batch

Values = dict[bytes, bytes]
IDEMPOTENT, TRANSACTIONAL = (1, 2), (11, 12, 13)


@dataclass(slots=True)
class Written:
    """A record that was appended; producer_id is that of its open transaction, -1 if it is committed."""

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = -1


@dataclass(slots=True)
class CompactedHistory:
    """Writes into a log and keeps the model of it. Units: ms of wall time, which each step advances by a second."""

    log: Log
    rng: random.Random
    key_count: int = 8
    now_ms: int = 1_000_000
    written: list[Written] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    last_batches: dict[int, bytes] = field(default_factory=dict)
    is_open: set[int] = field(default_factory=set)

    def step(self) -> None:
        """Append a random batch or marker."""
        self.now_ms += 1_000
        producer_id = self.rng.choice((-1, -1, *IDEMPOTENT, *TRANSACTIONAL, *TRANSACTIONAL))
        if producer_id in self.is_open and self.rng.random() < 0.6:
            self.end(producer_id, commit=self.rng.random() < 0.6)
        else:
            self.write(producer_id)

    def write(self, producer_id: int) -> None:
        records = [
            (
                b"key-%d" % self.rng.randrange(self.key_count) + b"x" * self.rng.choice((0, 0, 40)),
                None if self.rng.random() < 0.25 else b"%d" % self.rng.randrange(10**9) + b"v" * self.rng.randrange(50),
            )
            for _ in range(self.rng.choice((1, 1, 2, 12)))
        ]
        sequence = self.sequences.get(producer_id, 0)
        is_transactional = producer_id in TRANSACTIONAL
        batch = build_batch(
            [Record(-1, self.now_ms + at, key, value) for at, (key, value) in enumerate(records)],
            codec=self.rng.choice(list(Codec)),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1,
            is_transactional=is_transactional,
        )
        offset = self.log.log_end_offset
        self.log.append(bytearray(batch), leader_epoch=0, timestamp_ms=self.now_ms)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(records)
            self.last_batches[producer_id] = batch
        if is_transactional:
            self.is_open.add(producer_id)
        owner = producer_id if is_transactional else -1
        self.written += [Written(offset + at, key, value, owner) for at, (key, value) in enumerate(records)]

    def end(self, producer_id: int, *, commit: bool) -> None:
        marker = marker_batch(producer_id, 0, is_commit=commit, coordinator_epoch=0, timestamp_ms=self.now_ms)
        plan = self.log.plan_marker(marker, leader_epoch=0, timestamp_ms=self.now_ms, transaction_version=0)
        self.log.write(plan)
        self.log.commit(plan)
        self.is_open.discard(producer_id)
        if commit:
            for one in self.written:
                one.producer_id = -1 if one.producer_id == producer_id else one.producer_id
        else:
            self.written = [one for one in self.written if one.producer_id != producer_id]

    @property
    def stable_offset(self) -> int:
        open_offsets = [one.offset for one in self.written if one.producer_id >= 0]
        return min(open_offsets, default=self.log.log_end_offset)

    def expected(self) -> Values:
        """What a consumer of committed records ends with."""
        end = self.stable_offset
        return final_values((one.key, one.value) for one in self.written if one.offset < end)


def final_values(records: object) -> Values:
    values: dict[bytes, bytes | None] = dict(records)  # type: ignore[call-overload]
    return {key: value for key, value in values.items() if value is not None}


def committed(log: Log, stable_offset: int) -> Values:
    """What a consumer of committed records ends with, by Kafka's rules for consumers."""
    start = log.local_log_start_offset
    coming = deque(log.aborted_between(start, stable_offset))
    return final_values(
        (record.key, record.value)
        for batch in _of_committed(read_all(log), coming)
        if batch.next_offset <= stable_offset
        for record in batch.records()
    )


def _of_committed(batches: list[RecordBatch], coming: deque[AbortedTransaction]) -> list[RecordBatch]:
    found, aborted = [], set[int]()
    for batch in batches:
        while coming and coming[0].first_offset <= batch.last_offset:
            aborted.add(coming.popleft().producer_id)
        if batch.is_control:
            marker = read_marker(batch.buffer, batch.position)
            if marker is not None and not marker.is_commit:
                aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborted):
            found.append(batch)
    return found
