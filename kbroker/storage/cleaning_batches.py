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
from itertools import compress as select
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from kbroker.storage.cleaning_map import HAS_NO_KEY, IS_LAST, IS_TOMBSTONE, OffsetMap
from kbroker.storage.cleaning_records import scan_keys, timestamp_deltas, with_timestamp_delta
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
from wire.compression import compress, decompress
from wire.crc32c import crc32c
from wire.errors import Malformed
from wire.record_batch import NO_TIMESTAMP, RecordBatch
from wire.record_walk import find_records

_IS_LAST: Final = bytes(flags & IS_LAST for flags in range(256))
_IS_LAST_VALUE: Final = bytes(flags & (IS_LAST | IS_TOMBSTONE) == IS_LAST for flags in range(256))


class KnownProducer(NamedTuple):
    """What the log must keep of a producer: the batches that end with these offsets, or else a marker of its epoch."""

    producer_epoch: int
    last_offsets: Collection[int]


@mypyc_attr(serializable=True)
class CleanedRecords:
    """How many records and bytes a pass has read and kept."""

    def __init__(self) -> None:
        self.records_read = 0
        self.records_kept = 0
        self.bytes_read = 0
        self.bytes_kept = 0
        self.invalid_records = 0


def unpacked(batch: RecordBatch, max_bytes: int) -> tuple[bytes, int, int]:
    """Bytes with the decompressed records, and where these start and end. Errors: Malformed.

    Bound  at most max_bytes, if they are compressed
    """
    buffer = batch.buffer
    if not batch.attributes & CODEC_MASK and isinstance(buffer, bytes):
        return buffer, batch.position + HEADER_SIZE, batch.position + batch.size
    data = decompress(batch.codec, batch.payload, max_bytes=max(max_bytes, batch.size))
    return data, 0, len(data)


class BatchCleaner:
    """See the module's docstring.

    Shape  the map is complete
    Units  timestamp_ms is the wall time of the pass; horizon_ms is the delete horizon that it sets
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, KnownProducer],
        *,
        timestamp_ms: int,
        horizon_ms: int,
        max_decompressed_bytes: int,
    ) -> None:
        self.transactions = transactions
        self.stats = CleanedRecords()
        self._map = offsets
        self._producers = producers
        self._timestamp_ms = timestamp_ms
        self._horizon_ms = min(horizon_ms, MAX_INT64)
        self._max_decompressed_bytes = max_decompressed_bytes

    def clean(self, batch: RecordBatch) -> RecordBatch | None:
        """What to keep of the next batch of the log: the same object for all of it, None for nothing.

        Errors  Malformed
        """
        stats = self.stats
        stats.bytes_read += batch.batch_length + FRAME_SIZE
        stats.records_read += batch.record_count
        if not batch.crc_is_valid():
            raise Malformed(f"the batch at offset {batch.base_offset} has a wrong CRC")
        flags = self._map.flags(batch.base_offset, batch.record_count)
        may_drop = self.transactions.may_drop(batch)
        has_horizon = batch.has_delete_horizon
        is_over = has_horizon and batch.base_timestamp <= self._timestamp_ms
        if may_drop and (is_over or not batch.is_control):
            return self._without_records(batch)
        if not batch.record_count:
            return self._without_records(batch)
        if batch.is_control:
            if may_drop and not has_horizon:
                return self._rebuilt(batch, bytes((1,)) * batch.record_count, needs_horizon=True)
            return self._whole(batch)
        if flags is None:
            flags = self._looked_up(batch)
        kept = flags.count(IS_LAST)
        if kept == batch.record_count:
            return self._whole(batch)
        stats.invalid_records += flags.count(HAS_NO_KEY)
        tombstones = 0 if is_over else flags.count(IS_LAST | IS_TOMBSTONE)
        kept += tombstones
        if not kept:
            return self._without_records(batch)
        needs_horizon = tombstones > 0 and not has_horizon
        if kept == batch.record_count and not needs_horizon:
            return self._whole(batch)
        return self._rebuilt(
            batch, flags.translate(_IS_LAST_VALUE if is_over else _IS_LAST), needs_horizon=needs_horizon
        )

    def _looked_up(self, batch: RecordBatch) -> bytearray:
        """The flags of the records of a batch that is not in the map."""
        keys, tombstones = scan_keys(*unpacked(batch, self._max_decompressed_bytes), batch.record_count)
        known = self._map.keys
        if batch.base_offset >= self._map.first_offset:  # behind the map: all of them stay, even expired tombstones
            flags = bytearray((IS_LAST,)) * len(keys)
            if not batch.has_delete_horizon:
                for at in tombstones:
                    flags[at] = IS_LAST | IS_TOMBSTONE
            return flags
        flags = bytearray([key not in known for key in keys])
        for at in tombstones:
            flags[at] |= IS_TOMBSTONE
        if None in keys:
            for at, key in enumerate(keys):
                if key is None:
                    flags[at] = HAS_NO_KEY
        return flags

    def _whole(self, batch: RecordBatch) -> RecordBatch:
        self._note_kept(batch.record_count, batch.size)
        return batch

    def _rebuilt(self, batch: RecordBatch, kept: bytes | bytearray, *, needs_horizon: bool) -> RecordBatch:
        """A batch of the records whose byte in `kept` is 1; needs_horizon if it gets a delete horizon."""
        data, position, end = unpacked(batch, self._max_decompressed_bytes)
        borders: list[int] = []
        find_records(data, position, end, batch.record_count, borders)
        borders.append(end)
        starts = list(select(borders, kept))
        ends = list(select(borders[1:], kept))
        base_timestamp, max_timestamp = batch.base_timestamp, batch.max_timestamp
        deltas: list[int] = []
        sets_horizon = needs_horizon
        if sets_horizon or not batch.is_log_append_time:
            deltas = timestamp_deltas(data, starts)
        # A timestamp delta has 64 bits. A record from too long ago for that gets no horizon, and stays.
        sets_horizon = sets_horizon and base_timestamp + min(deltas) - self._horizon_ms >= -MAX_INT64 - 1
        if not batch.is_log_append_time:
            max_timestamp = base_timestamp + max(deltas)
        if sets_horizon:
            shift = base_timestamp - self._horizon_ms
            base_timestamp = self._horizon_ms
            payload = b"".join(
                [
                    with_timestamp_delta(data, start, end, delta + shift)
                    for start, end, delta in zip(starts, ends, deltas, strict=True)
                ]
            )
        else:
            payload = b"".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
        attributes = batch.attributes & KNOWN_BITS | (DELETE_HORIZON_BIT if sets_horizon else 0)
        if attributes & CODEC_MASK:
            payload = compress(batch.codec, payload)
        made = _build(
            batch,
            payload,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(starts),
        )
        self._note_kept(len(starts), made.size)
        return made

    def _without_records(self, batch: RecordBatch) -> RecordBatch | None:
        """An empty batch if its header is still needed."""
        known = self._producers.get(batch.producer_id) if batch.has_producer_id else None
        if known is None:
            return None
        if known.last_offsets:
            is_needed = batch.last_offset in known.last_offsets
        else:
            is_needed = batch.is_control and batch.producer_epoch == known.producer_epoch
        return self.emptied(batch) if is_needed else None

    def emptied(self, batch: RecordBatch) -> RecordBatch:
        """The batch without its records."""
        attributes = batch.attributes & KNOWN_BITS & ~(CODEC_MASK | DELETE_HORIZON_BIT)
        made = _build(batch, b"", attributes=attributes, base_timestamp=NO_TIMESTAMP, max_timestamp=batch.max_timestamp)
        self._note_kept(0, made.size)
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
) -> RecordBatch:
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
    return RecordBatch(made)
