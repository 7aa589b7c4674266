"""Looks up offsets by timestamp in the tier: in the part of a log between its start and the local log.

Segments whose newest record is too old are skipped by their metadata. In the first segment that may hold the record,
the time index gives the start position. From there batch headers are checked, and one batch is decoded.

Source  KIP-405, KIP-734; KAFKA-16548 (every batch was decompressed), KAFKA-17552 (the largest timestamp was searched
        only in the local log)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.batch_window import Start, find_batch
from kbroker.tiered.chunk_reader import ChunkReader
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.ports import PartitionReader
from kbroker.tiered.remote_read import RemoteReader
from wire.errors import Malformed
from wire.record_batch import RecordBatch

Found: TypeAlias = tuple[int, int, int]
"""(offset, timestamp in ms of wall time, leader epoch)"""

_SEGMENTS_BETWEEN_YIELDS: Final = 500
_NEVER: Final = 1 << 63  # later than any timestamp


class _Part(NamedTuple):
    """The offsets from start_offset up to end_offset, exclusive, which are read from one segment."""

    segment: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int


class RemoteSearch:
    """Searches by timestamp in the part of a partition that is only in the tier.

    Errors  RemoteStorageError
    """

    def __init__(self, reader: RemoteReader, env: Env, partition: PartitionReader) -> None:
        self._reader = reader
        self._env = env
        self._partition = partition

    async def first_at_or_after(self, timestamp: int) -> Found | None:
        """The first record whose timestamp is at least `timestamp`."""
        for number, part in enumerate(self._parts(), 1):
            if part.segment.max_timestamp_ms >= timestamp:
                found = await self._search(part, timestamp)
                if found is not None:
                    return found
            if number % _SEGMENTS_BETWEEN_YIELDS == 0:
                await self._env.sleep_ms(0)
        return None

    async def latest(self) -> Found | None:
        """The first record with the largest timestamp; None if no record has a timestamp."""
        best: Found | None = None
        parts = sorted(self._parts(), key=lambda part: (-part.segment.max_timestamp_ms, part.start_offset))
        for part in parts:
            newest = part.segment.max_timestamp_ms
            if newest < 0 or (best is not None and newest < best[1]):
                break
            found = await self._search(part, newest)
            if found is None:
                # The log or the local log starts within the segment, and its newest record is not in this part.
                largest = await self._largest(part)
                found = await self._search(part, largest) if largest >= 0 else None
            if found is not None and (best is None or (-found[1], found[0]) < (-best[1], best[0])):
                best = found
        return best

    def _parts(self) -> Iterator[_Part]:
        """The parts that are only in the tier, by offset."""
        log = self._partition.log
        at, end = log.log_start_offset, log.local_log_start_offset
        while at < end:
            segment, _, segment_end = self._reader.locate(self._partition, at)
            yield _Part(segment, at, min(segment_end, end))
            at = segment_end

    async def _search(self, part: _Part, timestamp: int) -> Found | None:
        segment, start_offset, end_offset = part

        def find_start(indexes: RemoteIndexes) -> Start:
            return Start(indexes.position_for_timestamp(timestamp, start_offset))

        look = partial(find_batch, timestamp=timestamp, from_offset=start_offset, end_offset=end_offset)
        start = find_start(await self._reader.indexes.get(segment))
        while start.position < segment.segment_size_in_bytes:
            with ChunkReader(self._reader.cache, segment) as chunks:
                probe = await self._reader.look(chunks, start, look, find_start=find_start)
                if probe.ends:
                    return None
                start = Start(probe.position)
                if probe.batch is not None:
                    batch = RecordBatch(probe.batch)
                    found = await self._env.run_blocking(_first_in, batch, timestamp, start_offset)
                    if found is not None:
                        return found if found[0] < end_offset else None
                    start = Start(probe.position + batch.size)
        return None

    async def _largest(self, part: _Part) -> int:
        """The largest timestamp of a part, from its batch headers."""
        segment, start_offset, end_offset = part
        look = partial(find_batch, timestamp=_NEVER, from_offset=start_offset, end_offset=end_offset)
        indexes = await self._reader.indexes.get(segment)
        start, largest = Start(indexes.position_for(start_offset)), -1
        while start.position < segment.segment_size_in_bytes:
            with ChunkReader(self._reader.cache, segment) as chunks:
                probe = await self._reader.look(chunks, start, look)
            largest = max(largest, probe.largest)
            if probe.ends:
                break
            start = Start(probe.position)
        return largest


def _first_in(batch: RecordBatch, timestamp: int, from_offset: int) -> Found | None:
    """The first matching record of a batch, which is decoded for it. Errors: RemoteStorageError."""
    try:
        for record in batch.records():
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return record.offset, record.timestamp, batch.partition_leader_epoch
    except Malformed as error:
        raise RemoteStorageError(f"the batch at offset {batch.base_offset} cannot be decoded: {error}") from error
    return None
