"""Closed segments with real batches, indexes, epochs and metadata, as the tier copies them.

All contents derive from the arguments, so the same call writes the same bytes. Only the ids differ from call to call,
in an order that is always the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.storage.files import FilePool
from kbroker.storage.producer_state import format_snapshot
from kbroker.storage.segment import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, Segment, file_name
from kbroker.tiered.api import (
    FINISHED,
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from wire.batch_header import BatchHeader
from wire.record_batch import Record, build_batch

START_MS = 1_700_000_000_000
RECORDS_PER_BATCH = 3
INTERVAL_BYTES = 4096
_numbers = itertools.count()


@dataclass(frozen=True)
class WrittenSegment:
    """A segment to copy: its metadata, its files, and their contents."""

    metadata: RemoteLogSegmentMetadata
    data: LogSegmentData
    log: bytes
    indexes: dict[IndexType, bytes]

    @property
    def finished(self) -> RemoteLogSegmentMetadata:
        """The metadata after the copy."""
        return replace(self.metadata, state=FINISHED)


def partition_named(topic: str = "orders", partition: int = 0, *, incarnation: int = 1) -> TopicIdPartition:
    """A partition whose topic has the same id at each call; another incarnation is another topic of that name."""
    return TopicIdPartition(uuid5(NAMESPACE_OID, f"{topic!r}/{incarnation}"), topic, partition)


def write_segment(
    directory: str,
    *,
    batches: int,
    start_offset: int = 0,
    leader_epochs: tuple[tuple[int, int], ...] | None = None,
    value_bytes: int = 300,
    start_ms: int = START_MS,
    **how: Any,
) -> WrittenSegment:
    """Write a closed segment into its own directory below `directory`, which exists.

    Shape   each batch has RECORDS_PER_BATCH records, one of which has `value_bytes` bytes; leader_epochs as in
            RemoteLogSegmentMetadata, by default epoch 0 only; `how` has other arguments of `write_batches`
    Units   records are one second apart, starting at `start_ms`
    """
    number = next(_numbers)
    epochs = leader_epochs or ((0, start_offset),)
    made: list[bytes] = []
    offset = start_offset
    for batch_number in range(batches):
        epoch = max(epoch for epoch, start in epochs if start <= offset)
        timestamp = start_ms + 1000 * (offset - start_offset)
        values = [b"%d/%d" % (number, batch_number), None, _filling(value_bytes, number + batch_number)]
        made.append(
            build_batch(
                [Record(offset + at, timestamp + 1000 * at, None, value) for at, value in enumerate(values)],
                base_offset=offset,
                partition_leader_epoch=epoch,
            )
        )
        offset += len(values)
    return write_batches(
        directory,
        made,
        start_offset=start_offset,
        end_offset=offset - 1,
        leader_epochs=epochs,
        start_ms=start_ms,
        **how,
    )


def write_batches(
    directory: str,
    batches: Sequence[bytes],
    *,
    start_offset: int,
    end_offset: int,
    leader_epochs: tuple[tuple[int, int], ...],
    history: tuple[tuple[int, int], ...] | None = None,
    disk: Disk | None = None,
    partition: TopicIdPartition | None = None,
    broker_id: int = 1,
    transaction_index: bytes | None = None,
    segment_id: UUID | None = None,
    start_ms: int = START_MS,
    interval_bytes: int = INTERVAL_BYTES,
) -> WrittenSegment:
    """The same for existing batches, as the broker `broker_id` would copy them; `history` has the epochs of its whole
    log up to the segment's end, if they are not the segment's own. The transaction index is written unchanged.
    """
    disk = RealDisk() if disk is None else disk
    number = next(_numbers)
    home = f"{directory}/{number}"
    disk.make_directory(home)
    files = FilePool(disk)
    segment = Segment.create(files, home, start_offset, interval_bytes=interval_bytes, created_ms=start_ms)
    log = bytearray()
    for batch in batches:
        segment.note_batch(BatchHeader(batch), len(log))
        log += batch
    segment.open().file.pwrite(log, 0)
    segment.add_time_entry()
    segment.write_indexes()
    snapshot = f"{home}/{file_name(end_offset + 1, SNAPSHOT_SUFFIX)}"
    write_atomically(disk, snapshot, bytes(format_snapshot(())), sync=False)
    transactions = None
    if transaction_index is not None:
        transactions = segment.path(TXN_INDEX_SUFFIX)
        write_atomically(disk, transactions, transaction_index, sync=False)
    epochs = history or leader_epochs
    entries = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    data = LogSegmentData(
        log_segment=segment.log_path,
        offset_index=segment.offset_index.path,
        time_index=segment.time_index.path,
        transaction_index=transactions,
        producer_snapshot_index=snapshot,
        leader_epoch_index=f"0\n{len(epochs)}\n{entries}".encode(),
    )
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition or partition_named(), segment_id or uuid5(NAMESPACE_OID, f"segment {number}")),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=segment.max_timestamp,
        broker_id=broker_id,
        event_timestamp_ms=start_ms,
        segment_leader_epochs=leader_epochs,
        segment_size_in_bytes=len(log),
        txn_index_empty=transaction_index is None,
    )
    indexes = {
        IndexType.OFFSET: read_file(disk, data.offset_index),
        IndexType.TIMESTAMP: read_file(disk, data.time_index),
        IndexType.PRODUCER_SNAPSHOT: read_file(disk, data.producer_snapshot_index),
        IndexType.LEADER_EPOCH: data.leader_epoch_index,
    }
    if transaction_index is not None:
        indexes[IndexType.TRANSACTION] = transaction_index
    return WrittenSegment(metadata, data, bytes(log), indexes)


def _filling(size: int, seed: int) -> bytes:
    """Bytes that differ from piece to piece, so that pieces cannot be confused."""
    words = (seed * 1_000_003 + at for at in range(size // 8 + 1))
    return b"".join(word.to_bytes(8, "big") for word in words)[:size]
