"""The producer state of a partition; it detects duplicate batches and gaps in sequences.

The state holds the epoch and the last five batches of each producer id, because a producer may have five batches in
flight. A batch with the same first and last sequence number as a remembered one is a duplicate and gets the original's
offset. Any other batch must continue the sequence. The state depends only on the log, so it can always be rebuilt from
a snapshot and the batches after it.

Snapshots use Kafka's file format. Kafka writes one row for each producer, so after a restart it knows only the last
batch: it refuses retries of the four batches before, and the client fails or stores them twice. kbroker writes one row
for each remembered batch, oldest first. Kafka can read such a file: it puts the rows into a map one after the other, so
the last row of each producer remains.

`check` decides about a batch to append and changes nothing; `note` records a batch of the log. Transactions are tracked
as far as the log shows them (open_transactions.py). `check` also refuses a batch that would start a transaction and was
not verified (verification.py), and `check_marker` a marker of an old coordinator or for an old epoch.

Source  KIP-98; `<offset>.snapshot` files as Apache Kafka 4.3.1 writes them
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from struct import Struct
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from kbroker.runtime.ports import Buffer
from kbroker.storage.open_transactions import OpenTransactions
from kbroker.storage.transaction_index import AbortedTransaction
from kbroker.storage.verification import Verification, Verifications
from wire.batch_header import CONTROL_BIT, MAX_SEQUENCE, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from wire.crc32c import crc32c
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.record_batch import RecordBatch

REMEMBERED_BATCHES: Final = 5
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

DEFAULT_LIMIT: Final = 100_000
MAX_EPOCH: Final = 32_767
EPOCH_FOR_EACH_TRANSACTION: Final = 2
"""The transaction.version since which each transaction has an epoch of its own, and its marker the next one."""

SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = Struct(">hI")
_SNAPSHOT_COUNT: Final = Struct(">i")
_ROWS_POSITION: Final = _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size
_SHORTS: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_COMMIT: Final = 1
_SNAPSHOT_ROW: Final = Struct(">qhiqiqiq")


class RememberedBatch(NamedTuple):
    """One remembered batch: its last sequence number, its last offset, its last offset delta and its timestamp."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class SnapshotRow(NamedTuple):
    """One row of a snapshot file: a producer and one of its batches; last_offset is -1 if it has no batch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


_NO_BATCH: Final = RememberedBatch(NO_SEQUENCE, NO_OFFSET, 0, -1)


class TransactionMarker(NamedTuple):
    """The end of a transaction, from a control batch in the log."""

    is_commit: bool
    coordinator_epoch: int


@mypyc_attr(serializable=True)
@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer of one partition; `batches` are the last five, oldest first.

    Units  heard_ms is when `ProducerState.expire` first found the last batch at heard_offset. For a producer from a
           snapshot it is the latest time at which that batch can have arrived, -1 if unknown
    """

    producer_id: int
    _: KW_ONLY
    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    current_txn_first_offset: int = NO_OFFSET
    batches: list[RememberedBatch] = field(default_factory=list)
    heard_ms: int = -1
    heard_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def copy(self) -> ProducerEntry:
        return replace(self, batches=list(self.batches))

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Check whether a client's batch may be appended. Returns the batch that it repeats, None if it is new.

        Errors  INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE
        """
        epoch, first_sequence = header.producer_epoch, header.base_sequence
        if epoch == self.producer_epoch and self.batches:
            if first_sequence == (self.batches[-1][0] + 1) & MAX_SEQUENCE and (
                self.current_txn_first_offset < 0 or header.attributes & TRANSACTIONAL_BIT
            ):
                return None  # the common case: the next batch
            if (original := self.original_of(header)) is not None:
                return original
        self.check_epoch(epoch)
        if first_sequence < 0:
            return None  # from a coordinator of this broker; clients cannot send it
        last = self.last_sequence
        if epoch > self.producer_epoch:
            # An epoch starts at 0, unless the producer is unknown: its earlier batches may have been deleted.
            is_next = first_sequence == 0 or self.producer_epoch == NO_EPOCH
        else:
            is_next = first_sequence == (last + 1) & MAX_SEQUENCE
        if not is_next:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {self.producer_id} sends sequence {first_sequence} of epoch {epoch} after {last} of epoch "
                f"{self.producer_epoch}",
            )
        if self.current_txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {self.producer_id} has an open transaction, but the batch is not transactional",
            )
        return None

    def original_of(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that a batch repeats, None if it repeats none of the remembered ones."""
        if header.producer_epoch == self.producer_epoch and header.base_sequence >= 0:
            first_sequence, last_sequence = header.base_sequence, header.last_sequence
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None

    def check_epoch(self, epoch: int) -> None:
        """Refuse an old epoch. Errors: INVALID_PRODUCER_EPOCH."""
        if epoch < self.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {self.producer_id} has epoch {epoch}, but epoch {self.producer_epoch} is known",
            )

    def check_marker(self, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Check whether a coordinator's marker may be appended.

        With transaction.version 2 the marker of an open transaction has a greater epoch than its batches. Only a
        repeated marker may have the known epoch, and one that follows an overflow of the epoch.
        Errors  INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
        """
        is_late = epoch == self.producer_epoch and transaction_version >= EPOCH_FOR_EACH_TRANSACTION
        if is_late and self.current_txn_first_offset >= 0 and epoch != MAX_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker of producer {self.producer_id} has epoch {epoch}, which its open transaction has",
            )
        self.check_epoch(epoch)
        if coordinator_epoch < self.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {self.coordinator_epoch}",
            )

    def note(self, header: BatchHeader) -> None:
        """Record a data batch of the log."""
        if header.producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = header.producer_epoch
        delta = header.last_offset_delta
        self.batches.append(
            RememberedBatch(header.last_sequence, header.base_offset + delta, delta, header.max_timestamp)
        )
        if len(self.batches) > REMEMBERED_BATCHES:
            del self.batches[0]
        self.last_timestamp_ms = header.max_timestamp


@mypyc_attr(serializable=True)
@dataclass(slots=True, eq=False)
class ProducerState:
    """All producers of one partition.

    Shape      producers maps producer_id to its entry; verifications are those in progress, which the log does not show
    Bound      limit producers without an open transaction; if there are more, the longest idle ones are evicted and
               then unknown, as expired ones are
    Invariant  end_offset: every batch below it has been recorded
    """

    end_offset: int = 0
    _: KW_ONLY
    limit: int = DEFAULT_LIMIT
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    open_transactions: OpenTransactions = field(default_factory=OpenTransactions)
    verifications: Verifications = field(default_factory=Verifications)
    snapshot_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.snapshot_offset = self.end_offset

    def __len__(self) -> int:
        return len(self.producers)

    def check(
        self,
        header: BatchHeader,
        pending: dict[int, ProducerEntry] | None = None,
        verification: Verification | None = None,
    ) -> RememberedBatch | None:
        """As `ProducerEntry.check`; `pending` holds the entries after the earlier batches of the same append.

        With a `verification` a transactional batch must continue an open transaction, or the verification be valid.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID or header.attributes & CONTROL_BIT:
            return None
        entry = pending.get(producer_id) if pending is not None else None
        if entry is None:
            entry = self.producers.get(producer_id)
        if verification is not None and header.attributes & TRANSACTIONAL_BIT:
            if entry is not None and (original := entry.original_of(header)) is not None:
                return original
            self._check_verified(header, entry, verification)
        duplicate = None if entry is None else entry.check(header)
        if pending is not None and duplicate is None:
            after = ProducerEntry(producer_id) if entry is None else entry.copy()
            after.note(header)
            pending[producer_id] = after
        return duplicate

    def _check_verified(self, header: BatchHeader, entry: ProducerEntry | None, verification: Verification) -> None:
        if self.is_open(header.producer_id, header.producer_epoch):
            return
        if entry is not None:
            entry.check_epoch(header.producer_epoch)
        known = self.verifications.get(header.producer_id)
        if known is not verification:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        if header.base_sequence >= 0:
            known.check_sequence(header, has_batches=entry is not None and bool(entry.batches))

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction of this epoch."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch

    def check_marker(self, header: BatchHeader, marker: TransactionMarker, transaction_version: int) -> None:
        """As `ProducerEntry.check_marker`."""
        entry = self.producers.get(header.producer_id)
        if entry is not None:
            entry.check_marker(header.producer_epoch, marker.coordinator_epoch, transaction_version)

    def note(self, header: BatchHeader, marker: TransactionMarker | None = None) -> AbortedTransaction | None:
        """Record a batch of the log; `marker` is what a control batch holds. Returns the transaction it aborts."""
        producer_id, attributes = header.producer_id, header.attributes
        self.end_offset = header.base_offset + header.last_offset_delta + 1
        if producer_id == NO_PRODUCER_ID:
            return None
        entry = self.producers.get(producer_id)
        if entry is None:
            if len(self.producers) >= self.limit:
                self._evict_idle()
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        if attributes & TRANSACTIONAL_BIT and self.verifications:
            self.verifications.end(header)
        if attributes & CONTROL_BIT:
            return None if marker is None else self._end_transaction(entry, header, marker)
        entry.note(header)
        if attributes & TRANSACTIONAL_BIT and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = header.base_offset
            self.open_transactions[header.base_offset] = producer_id
        return None

    def _end_transaction(
        self, entry: ProducerEntry, header: BatchHeader, marker: TransactionMarker
    ) -> AbortedTransaction | None:
        if header.producer_epoch != entry.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp
        first_offset, entry.current_txn_first_offset = entry.current_txn_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        last_offset = header.last_offset
        unstable = self.open_transactions.after(first_offset)
        self.open_transactions.end(first_offset, last_offset)
        if marker.is_commit:
            return None
        stable = last_offset + 1 if unstable is None else unstable
        return AbortedTransaction(entry.producer_id, first_offset, last_offset, stable)

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the first transaction that is open or whose end the high watermark has not passed; None if there
        is none.
        """
        return self.open_transactions.first_unstable_offset

    def on_high_watermark(self, high_watermark: int) -> None:
        """Mark transactions whose marker is below the high watermark as stable."""
        self.open_transactions.on_high_watermark(high_watermark)

    def expire(self, timestamp_ms: int, expiration_ms: int) -> int:
        """Remove producers that have been idle for `expiration_ms` and have no open transaction; returns how many.

        A producer that has sent a batch since the last call is not idle, whatever the timestamps of its records. If old
        record timestamps counted, a batch that is resent after a crash could be appended twice. For producers from a
        snapshot heard_ms comes from the segment files. (Kafka uses only record timestamps, and at startup drops expired
        producers from snapshots.)
        """
        gone = []
        for producer_id, entry in self.producers.items():
            if entry.last_offset != entry.heard_offset:
                entry.heard_offset, entry.heard_ms = entry.last_offset, timestamp_ms
            if (
                entry.current_txn_first_offset < 0
                and timestamp_ms - max(entry.heard_ms, entry.last_timestamp_ms) >= expiration_ms
            ):
                gone.append(producer_id)
        for producer_id in gone:
            del self.producers[producer_id]
        self.verifications.expire(timestamp_ms, expiration_ms)
        return len(gone)

    def _evict_idle(self) -> None:
        """Evict the longest idle sixteenth, so that one sort makes room for many new producers."""
        idle = [entry for entry in self.producers.values() if entry.current_txn_first_offset < 0]
        idle.sort(key=lambda entry: entry.last_offset)
        for entry in idle[: len(self.producers) - self.limit + max(1, self.limit // 16)]:
            del self.producers[entry.producer_id]

    def restore(self, offset: int, entries: Iterable[ProducerEntry]) -> None:
        """Restore the state from a snapshot at that offset."""
        self.clear(offset)
        for entry in entries:
            entry.heard_offset = entry.last_offset
            self.producers[entry.producer_id] = entry
        self.open_transactions = OpenTransactions(
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in self.producers.values()
            if entry.current_txn_first_offset >= 0
        )

    def clear(self, offset: int) -> None:
        """Forget everything; the log now ends at that offset."""
        self.producers.clear()
        self.open_transactions = OpenTransactions()
        self.verifications.clear()
        self.end_offset = offset
        self.snapshot_offset = offset

    def format_snapshot(self) -> bytearray:
        return format_snapshot(self.producers.values())


def format_snapshot(entries: Iterable[ProducerEntry]) -> bytearray:
    """The bytes of a snapshot file: version, CRC-32C of the rest, count, rows of 46 bytes.

    Only a producer's last row has its open transaction, because Kafka treats any transaction in a row as open. No row
    has a later timestamp than the last one: Kafka drops expired rows, and an older row would then remain.
    """
    data = bytearray(_ROWS_POSITION)
    pack = _SNAPSHOT_ROW.pack
    for entry in entries:
        producer_id, epoch, coordinator_epoch = entry.producer_id, entry.producer_epoch, entry.coordinator_epoch
        latest = entry.last_timestamp_ms
        for last_sequence, last_offset, delta, own in entry.batches[:-1]:
            timestamp_ms = min(own, latest)
            data += pack(
                producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, NO_OFFSET
            )
        last_sequence, last_offset, delta, _ = entry.batches[-1] if entry.batches else _NO_BATCH
        txn_first_offset = entry.current_txn_first_offset
        data += pack(producer_id, epoch, last_sequence, last_offset, delta, latest, coordinator_epoch, txn_first_offset)
    _SNAPSHOT_COUNT.pack_into(data, _SNAPSHOT_HEAD.size, (len(data) - _ROWS_POSITION) // _SNAPSHOT_ROW.size)
    crc = crc32c(memoryview(data)[_SNAPSHOT_HEAD.size :])
    _SNAPSHOT_HEAD.pack_into(data, 0, SNAPSHOT_VERSION, crc)
    return data


def parse_snapshot(data: Buffer) -> list[ProducerEntry]:
    """Parse a snapshot file of kbroker or Kafka into producers. Errors: as `snapshot_rows`."""
    entries: dict[int, ProducerEntry] = {}
    for row in _unpack_rows(data):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, txn_first_offset = row
        entry = entries.get(producer_id)
        if entry is None or entry.producer_epoch != epoch:
            entry = entries[producer_id] = ProducerEntry(producer_id, producer_epoch=epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp_ms = timestamp_ms
        entry.current_txn_first_offset = txn_first_offset
        if last_offset >= 0:
            entry.batches.append(RememberedBatch(last_sequence, last_offset, delta, timestamp_ms))
            if len(entry.batches) > REMEMBERED_BATCHES:
                del entry.batches[0]
    return list(entries.values())


def snapshot_rows(data: Buffer) -> Iterator[SnapshotRow]:
    """The rows of a snapshot file. Errors: ValueError if the file is damaged or has another version."""
    return map(SnapshotRow._make, _unpack_rows(data))


def _unpack_rows(data: Buffer) -> Iterator[tuple[int, ...]]:
    try:
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEAD.size)
    except struct.error as error:
        raise ValueError(f"producer snapshot of {len(data)} bytes is cut short") from error
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot has version {version}, expected {SNAPSHOT_VERSION}")
    if crc32c(memoryview(data)[_SNAPSHOT_HEAD.size :]) != crc:
        raise ValueError("producer snapshot has a wrong CRC")
    rows = memoryview(data)[_ROWS_POSITION:]
    if count < 0 or len(rows) != count * _SNAPSHOT_ROW.size:
        raise ValueError(f"producer snapshot has {len(rows)} bytes for {count} rows")
    return _SNAPSHOT_ROW.iter_unpack(rows)


def read_marker(data: Buffer, position: int) -> TransactionMarker | None:
    """Parse the marker in a producer's control batch; None if it does not end a transaction."""
    try:
        record = next(RecordBatch(data, position).records(), None)
        if record is None or record.key is None or record.value is None:
            return None
        _, kind = _SHORTS.unpack_from(record.key)
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    except (Malformed, struct.error):
        return None
    return TransactionMarker(kind == _COMMIT, coordinator_epoch) if kind in (0, _COMMIT) else None
