"""Finds offsets by timestamp in the tier, with the segments' time indexes and without a broker.

Timestamps need not ascend. The answer is the first record, by offset, at or after the given time. It equals the
broker's answer, because both use the largest timestamps of segments, index entries and batches.

Source  RemoteLogManager.findOffsetByTimestamp of Apache Kafka 4.3.1
"""

from __future__ import annotations

from kbroker.spark.errors import error_of_store, segment_error
from kbroker.spark.plan import PartitionState, usable_segments
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.index import CorruptIndex
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.indexes import RemoteIndexes, checked_offsets, checked_times
from kbroker.tiered.segment_files import RemoteFile
from wire.errors import Malformed

PIECE_BYTES = 1 << 20


def load_indexes(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, *, with_times: bool = True
) -> RemoteIndexes | None:
    """The checked offset and time indexes of a segment; None if they are missing or damaged: they only save reading.
    Without `with_times` the time index is not fetched, and is empty.

    Errors  RemoteStorageError if the store does not answer
    """
    try:
        offsets = checked_offsets(storage.fetch_index(segment, IndexType.OFFSET), segment)
        times = checked_times(storage.fetch_index(segment, IndexType.TIMESTAMP), segment) if with_times else b""
    except (CorruptIndex, RemoteResourceNotFound):
        return None
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError:
        return None  # the store reports damage
    return RemoteIndexes(segment.start_offset, offsets, times, b"")


def first_at_or_after(storage: RemoteStorageManager, state: PartitionState, timestamp_ms: int) -> int | None:
    """The first offset, at or after the log start offset, whose record is at or after the time; None if there is none.

    Errors  RemoteStorageError if an index cannot be fetched; MissingObject, DamagedObject, StoreUnavailable if the
            segment that contains the offset cannot be read
    """
    for segment in usable_segments(state):
        if segment.max_timestamp_ms < timestamp_ms or segment.end_offset < state.log_start_offset:
            continue
        start_offset = max(segment.start_offset, state.log_start_offset)
        indexes = load_indexes(storage, segment)
        position = 0 if indexes is None else indexes.position_for_timestamp(timestamp_ms, start_offset)
        try:
            found = _in_segment(storage, segment, position, timestamp_ms, start_offset)
        except (RemoteStorageError, OSError, Malformed) as error:
            raise segment_error(*error_of_store(error), segment, storage, offset=start_offset) from error
        if found is not None:
            return found
    return None


def _in_segment(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    position: int,
    timestamp_ms: int,
    start_offset: int,
) -> int | None:
    """Searches from the position of a batch on. Errors: RemoteStorageError, Malformed."""
    least = segment.start_offset  # the CRC does not cover a batch's own offset
    reader = BatchReader(RemoteFile(storage, segment, "the object"), position, chunk_bytes=PIECE_BYTES)
    for batch in reader:
        if not batch.crc_is_valid():
            raise RemoteObjectDamaged(f"the batch at byte {reader.position} is damaged")
        if not least <= batch.base_offset <= batch.last_offset <= segment.end_offset:
            what = f"the batch at byte {reader.position} claims to begin at offset {batch.base_offset}"
            raise RemoteObjectDamaged(what)
        least = batch.next_offset
        if batch.last_offset < start_offset or batch.max_timestamp < timestamp_ms or batch.is_control:
            continue
        for record in batch.records():
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return record.offset
    if reader.error is not None:
        raise RemoteObjectDamaged(f"there is no complete batch at byte {reader.position}: {reader.error}")
    return None
