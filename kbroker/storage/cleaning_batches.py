"""What a pass of the cleaner keeps of one batch: all of its bytes, a smaller batch, an empty one, or nothing.

A record is dropped if the dirty part has a later one of its key. A tombstone also goes once its delete horizon is over:
the first pass that finds it writes that time into the header of its batch, delete.retention.ms from then on. So a
consumer that started before has that long to read the tombstone.

A smaller batch keeps its base offset, last offset, producer, sequence number, codec and the bytes of its records, whose
offset deltas may then have gaps. A batch that still tells something without records becomes an empty one: the last
sequence numbers of a producer, and where a cleaned segment ends.

Source  KIP-534; MemoryRecords.filterTo and Cleaner.cleanInto of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress as select
from typing import Final, NamedTuple

from kbroker.runtime.ports import Buffer
from kbroker.storage.cleaning_map import OffsetMap
from kbroker.storage.cleaning_records import ScannedRecords, scan_records, timestamp_deltas, with_timestamp_delta
from kbroker.storage.cleaning_transactions import CleanedTransactions
from kbroker.storage.log_config import MAX_INT64
from wire.batch_header import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON_BIT,
    FRAME_SIZE,
    HEADER,
    HEADER_SIZE,
    KNOWN_BITS,
    MAGIC,
    POSITIONS,
)
from wire.compression import Codec, compress, decompress
from wire.crc32c import crc32c
from wire.errors import Malformed
from wire.record_batch import NO_TIMESTAMP, RecordBatch


class KnownProducer(NamedTuple):
    """What the log must keep of a producer: the batches that end with these offsets, or else a marker of its epoch."""

    producer_epoch: int
    last_offsets: Collection[int]


@dataclass(slots=True)
class CleanedRecords:
    """How many records and bytes a pass has read and kept."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    invalid_records: int = 0


def unpacked(batch: RecordBatch, max_bytes: int) -> bytes:
    """The bytes of the records; at most max_bytes, if they are compressed. Errors: Malformed."""
    return decompress(batch.codec, batch.payload, max_bytes=max(max_bytes, batch.size))


@dataclass(slots=True)
class BatchCleaner:
    """See the module's docstring.

    Units  timestamp_ms is the wall time of the pass
    """

    map: OffsetMap
    transactions: CleanedTransactions
    producers: Mapping[int, KnownProducer]
    timestamp_ms: int
    delete_retention_ms: int
    max_decompressed_bytes: int
    stats: CleanedRecords = field(default_factory=CleanedRecords)

    def clean(self, batch: RecordBatch) -> Buffer | None:
        """The bytes to keep of the next batch of the log, None for nothing. Errors: Malformed."""
        stats = self.stats
        stats.bytes_read += batch.size
        stats.records_read += batch.record_count
        if not batch.crc_is_valid():
            raise Malformed(f"the batch at offset {batch.base_offset} has a wrong CRC")
        may_drop = self.transactions.may_drop(batch)
        is_over = batch.has_delete_horizon and batch.base_timestamp <= self.timestamp_ms
        if may_drop and (is_over or not batch.is_control):
            return self._without_records(batch)
        if not batch.record_count:
            return self._without_records(batch)
        if batch.is_control:
            return self._kept_whole(batch, needs_horizon=may_drop)
        data = unpacked(batch, self.max_decompressed_bytes)
        records = scan_records(data, batch.record_count)
        kept = self._kept(batch, records, drops_tombstones=is_over)
        if kept is None:
            return self._kept_whole(batch, needs_horizon=bool(records.tombstones), data=data, records=records)
        if not any(kept):
            return self._without_records(batch)
        needs_horizon = any(kept[at] for at in records.tombstones)
        return self._rebuilt(batch, data, records, kept, needs_horizon=needs_horizon)

    def _kept(self, batch: RecordBatch, records: ScannedRecords, *, drops_tombstones: bool) -> list[bool] | None:
        """Which records stay; None if all do."""
        keys = records.keys
        found = list(map(self.map.offsets.get, keys))  # type: ignore[arg-type]  # None is not in the map
        drops_tombstones = drops_tombstones and bool(records.tombstones)
        has_keys = None not in keys
        if has_keys and not drops_tombstones and found.count(None) == len(found):
            return None
        base_offset, latest_offset = batch.base_offset, self.map.latest_offset
        offsets = [base_offset + delta for delta in records.deltas]
        if has_keys and not drops_tombstones and found == offsets:
            return None
        kept = [last is None or offset >= last for offset, last in zip(offsets, found, strict=True)]
        if drops_tombstones:
            for at in records.tombstones:
                kept[at] = kept[at] and offsets[at] > latest_offset
        if not has_keys:
            for at, key in enumerate(keys):
                if key is None and offsets[at] <= latest_offset:
                    kept[at] = False
                    self.stats.invalid_records += 1
        return None if all(kept) else kept

    def _kept_whole(
        self,
        batch: RecordBatch,
        *,
        needs_horizon: bool,
        data: bytes | None = None,
        records: ScannedRecords | None = None,
    ) -> Buffer:
        if needs_horizon and not batch.has_delete_horizon:
            if data is None or records is None:
                data = unpacked(batch, self.max_decompressed_bytes)
                records = scan_records(data, batch.record_count)
            return self._rebuilt(batch, data, records, [True] * batch.record_count, needs_horizon=True)
        self._note_kept(batch.record_count, batch.size)
        return batch.data

    def _rebuilt(
        self, batch: RecordBatch, data: bytes, records: ScannedRecords, kept: list[bool], *, needs_horizon: bool
    ) -> Buffer:
        """A batch of the kept records."""
        starts = list(select(records.starts, kept))
        ends = list(select(records.starts[1:], kept))
        base_timestamp, max_timestamp = batch.base_timestamp, batch.max_timestamp
        deltas: list[int] = []
        sets_horizon = needs_horizon and not batch.has_delete_horizon
        if sets_horizon or not batch.is_log_append_time:
            deltas = timestamp_deltas(data, starts)
        horizon = min(self.timestamp_ms + self.delete_retention_ms, MAX_INT64)
        # A timestamp delta has 64 bits. A record from too long ago for that gets no horizon, and stays.
        sets_horizon = sets_horizon and base_timestamp + min(deltas) - horizon >= -MAX_INT64 - 1
        if not batch.is_log_append_time:
            max_timestamp = base_timestamp + max(deltas)
        if sets_horizon:
            shift = base_timestamp - horizon
            base_timestamp = horizon
            payload = b"".join(
                [
                    with_timestamp_delta(data, start, end, delta + shift)
                    for start, end, delta in zip(starts, ends, deltas, strict=True)
                ]
            )
        else:
            payload = b"".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
        attributes = batch.attributes & KNOWN_BITS | (DELETE_HORIZON_BIT if sets_horizon else 0)
        if batch.codec is not Codec.NONE:
            payload = compress(batch.codec, payload)
        made = _build(
            batch,
            payload,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(starts),
        )
        self._note_kept(len(starts), len(made))
        return made

    def _without_records(self, batch: RecordBatch) -> Buffer | None:
        """An empty batch if its header is still needed."""
        known = self.producers.get(batch.producer_id) if batch.has_producer_id else None
        if known is None:
            return None
        if known.last_offsets:
            is_needed = batch.last_offset in known.last_offsets
        else:
            is_needed = batch.is_control and batch.producer_epoch == known.producer_epoch
        return self.emptied(batch) if is_needed else None

    def emptied(self, batch: RecordBatch) -> Buffer:
        """The batch without its records."""
        attributes = batch.attributes & KNOWN_BITS & ~(CODEC_MASK | DELETE_HORIZON_BIT)
        made = _build(batch, b"", attributes=attributes, base_timestamp=NO_TIMESTAMP, max_timestamp=batch.max_timestamp)
        self._note_kept(0, len(made))
        return made

    def _note_kept(self, records: int, size: int) -> None:
        self.stats.records_kept += records
        self.stats.bytes_kept += size


_CRC_AT: Final = POSITIONS["crc"]


def _build(
    batch: RecordBatch,
    payload: bytes,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int = 0,
) -> bytearray:
    """A batch with the offsets, epoch and producer of another one."""
    made = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        made,
        0,
        batch.base_offset,
        HEADER_SIZE - FRAME_SIZE + len(payload),
        batch.partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        batch.last_offset_delta,
        base_timestamp,
        max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        record_count,
    )
    made += payload
    made[_CRC_AT : _CRC_AT + 4] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return made
