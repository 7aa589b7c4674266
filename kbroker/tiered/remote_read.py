"""Reads records from the tier for consumers: whole, checked batches from an offset on.

An offset is located in three steps. The log's leader epochs give the epoch in which it was written, the metadata gives
the segment that holds it in that epoch, and the segment's offset index gives a position. So the right segment is read
even if segments overlap or belong to a diverged history. A consumer that continues where its last answer ended skips
the third step, and the next chunks are read ahead for it, across segment boundaries.

An answer waits only for its first batch. Further batches are added only if their bytes are in memory, so a client never
waits for more than the first batch.

Nothing is ever skipped. A missing or damaged segment is an error that clients retry (KAFKA_STORAGE_ERROR) until an
operator has repaired it. Only records that retention or DeleteRecords have removed, before or during the read, give
OFFSET_OUT_OF_RANGE: the log start offset rises before any object is deleted.

Source  KIP-405; RemoteLogManager.read of Apache Kafka 4.3.1; KAFKA-15388 (a missing offset at a segment's end), rows M3
        to M5 of the catalogue of faults
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kbroker.config.tier_settings import TierSettings
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.metrics import Histogram
from kbroker.runtime.net_ports import Env, Pieces
from kbroker.runtime.ports import Buffer
from kbroker.storage.transaction_index import AbortedTransaction
from kbroker.tiered.aborted import aborted_between
from kbroker.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.batch_window import BytesMissing, DamagedBatch, Start, Taken, Wanted, Window, take_batches
from kbroker.tiered.chunk_cache import ChunkCache
from kbroker.tiered.chunk_reader import ChunkReader
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.index_loads import IndexLoads
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.ports import PartitionReader
from kbroker.tiered.quota import ByteQuota
from kbroker.tiered.read_ahead import read_ahead
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_to_text

logger = get_logger(__name__)

Result = TypeVar("Result")

_LOG_INTERVAL_MS: Final = 60_000
_REMEMBERED_PLACES: Final = 4096


class RemoteRead(NamedTuple):
    """The result of a read from the tier.

    Shape  records are whole batches; aborted are their aborted transactions, sorted by offset, from first_offset on
    Note   next_offset follows the last batch. Without records it is either where to continue in the local log, if the
           tier has nothing from the offset on, or the offset itself, if the next batch does not fit
    """

    records: Pieces
    size: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class _Place(NamedTuple):
    """Where a read ended that may be continued."""

    segment_id: RemoteLogSegmentId
    position: int


FindStart: TypeAlias = Callable[[RemoteIndexes], Start]
"""Computes the start of a read from the indexes of a segment."""


class ReaderCounters:
    """Counts since the broker started, over all partitions. The read times include failed reads and reads whose client
    has gone.
    """

    __slots__ = ("damaged_batches", "missing_segments", "read_times_us", "reread_chunks")

    def __init__(self) -> None:
        self.read_times_us = Histogram()
        self.damaged_batches = self.missing_segments = self.reread_chunks = 0


class RemoteReader:
    """Reads the tier for consumers; see the module's docstring. It works only while `cache.run` runs.

    Errors  KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER (leadership lost while reading)
    """

    def __init__(
        self,
        env: Env,
        settings: TierSettings,
        *,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        quota: ByteQuota,
    ) -> None:
        self.cache = ChunkCache(env, settings, storage=storage, quota=quota)
        self.settings = settings
        self.counters = ReaderCounters()
        self._env = env
        self._metadata = metadata
        self.indexes = IndexLoads(env, indexes, self.cache, max_threads=settings.remote_log_reader_threads)
        self._places: OrderedDict[tuple[TopicIdPartition, int], _Place] = OrderedDict()  # least recently used first
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)

    def reconfigure(self, settings: TierSettings) -> None:
        """Apply changed settings; the quota belongs to the remote log manager."""
        self.settings = settings
        self.indexes.resize(settings.remote_log_reader_threads)
        self.cache.reconfigure(settings)

    def is_ready(self, partition: PartitionReader) -> bool:
        """Whether the tier's metadata of a partition are known."""
        remote = partition.remote
        return remote is not None and self._metadata.is_ready(remote.topic_id_partition)

    async def read(
        self,
        partition: PartitionReader,
        offset: int,
        *,
        max_bytes: int,
        at_least_one_batch: bool,
        read_committed: bool = False,
    ) -> RemoteRead:
        """At most max_bytes of whole batches, from the one that contains `offset` up to the start of the local log.

        With at_least_one_batch the first batch is returned even if it is larger; with read_committed the aborted
        transactions are included. After a cancellation the pending reads continue into the cache.
        """
        remote = partition.remote
        if remote is None:
            raise self.failed(partition, offset, RemoteStorageError("the topic is not tiered any more"))
        remote.counters.fetch_requests += 1
        began_ns = self._env.now_ns()
        try:
            await self.wait_until_ready(remote.topic_id_partition)
            found = await self._read(partition, remote.topic_id_partition, offset, max_bytes, at_least_one_batch)
            if read_committed and found.size:
                aborted = await aborted_between(
                    self._metadata, self.indexes.get, partition, offset, found.next_offset, env=self._env
                )
                found = found._replace(aborted=aborted)
        except RemoteStorageError as error:
            raise self.failed(partition, offset, error) from error
        finally:
            self.counters.read_times_us.record((self._env.now_ns() - began_ns) // 1000)
        if not (partition.is_leader or partition.is_follower):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.key} was given up")
        remote.counters.fetch_bytes += found.size
        return found

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once the tier's metadata of a partition are known. There is no error before that, because clients
        would retry it in a tight loop (KAFKA-15181, KAFKA-19599).
        """
        if not self._metadata.is_ready(partition):
            await self._metadata.wait_until_ready(partition)

    def failed(self, partition: PartitionReader, offset: int, error: RemoteStorageError) -> KafkaError:
        """Convert an error to the one that the client gets, and log it at a limited rate."""
        if not (partition.is_leader or partition.is_follower):
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.key} was given up")
        if offset < partition.log.log_start_offset:
            return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset=} of {partition.key} has been deleted")
        text = f"offset {offset} of {partition.key[0]}-{partition.key[1]} cannot be read from the tier: {error}"
        if partition.remote is not None:
            partition.remote.counters.fetch_errors += 1
            partition.remote.last_error = text
        is_missing = isinstance(error, RemoteResourceNotFound)
        if is_missing:
            self.counters.missing_segments += 1
        left_out = self._log_limit.admit((partition.key, is_missing), now_ms=self._env.now_ms())
        if left_out is not None:
            write = logger.warning if isinstance(error, RetriableRemoteStorageError) else logger.error
            write(
                "the tier cannot be read",
                topic=partition.key[0],
                partition=partition.key[1],
                offset=offset,
                why=str(error),
                left_out=left_out,
            )
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)

    # Locating

    def locate(self, partition: PartitionReader, offset: int) -> tuple[RemoteLogSegmentMetadata, int, int]:
        """The segment that contains an offset, the leader epoch of the offset, and the offset up to which the segment
        is valid: the end of the epoch or of the segment.

        Errors  RemoteStorageError: there is none
        """
        remote = partition.remote
        if remote is None:  # the topic left the tier during the read
            raise RemoteStorageError("the topic is not tiered any more")
        held = partition.log
        epoch = held.leader_epochs.epoch_for_offset(offset)
        segment = None
        if epoch >= 0:
            segment = self._metadata.remote_log_segment_metadata(remote.topic_id_partition, epoch, offset)
        if segment is None:
            raise RemoteStorageError(f"no segment in the tier holds offset {offset} of leader epoch {epoch}")
        _, epoch_end = held.leader_epochs.end_offset_for(epoch, held.log_end_offset)
        return segment, epoch, min(epoch_end, segment.end_offset + 1)

    # Reading

    async def _read(
        self, partition: PartitionReader, key: TopicIdPartition, offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> RemoteRead:
        room = min(max_bytes, max(self.cache.chunk_bytes, self.cache.max_bytes // 4))
        pieces: list[Buffer] = []
        size, at = 0, offset
        local_start = partition.log.local_log_start_offset
        while at < local_start:
            try:
                segment, epoch, end_offset = self.locate(partition, at)
            except RemoteStorageError:
                if size:
                    break  # the client's next request gets the error
                raise
            end_offset = min(end_offset, local_start)
            try:
                wanted = Wanted(at, end_offset, epoch, room - size, at_least_one_batch and not size)
                taken = await self._read_segment(key, segment, wanted, may_wait=not size)
            except RemoteResourceNotFound:
                # The segment may have been replaced or deleted since it was looked up.
                if partition.log.log_start_offset > at or self.locate(partition, at)[0] == segment:
                    raise
                continue
            if taken is None:
                break
            if taken.size:
                pieces += taken.pieces
                size += taken.size
                self._note(key, taken.next_offset, segment, taken.position)
                at = taken.next_offset
                if taken.is_full or size >= room:
                    break
                if at < end_offset and not taken.ends and taken.position < segment.segment_size_in_bytes:
                    break  # the next bytes are still being fetched
            if taken.is_full:
                break
            # KAFKA-15388: records may be missing at the end of a segment or epoch; the next segment continues.
            at = max(at, end_offset)
        return RemoteRead(Pieces(pieces, size), size, at)

    async def _read_segment(
        self, key: TopicIdPartition, segment: RemoteLogSegmentMetadata, wanted: Wanted, *, may_wait: bool
    ) -> Taken | None:
        """The batches of one segment. Without `may_wait` only what is in memory, or None: batches after the first must
        neither delay the answer nor make it fail.
        """
        place = self._places.get((key, wanted.offset))
        find_start: FindStart | None = None
        segment_size = segment.segment_size_in_bytes
        most = max(wanted.max_bytes, 1)
        if place is not None and place.segment_id == segment.remote_log_segment_id:
            start = Start(place.position, wanted.offset)
        elif wanted.offset <= segment.start_offset:
            start = Start(0, segment.start_offset)
        elif may_wait:
            # A seek waits for one batch, and may not read on. Further chunks would only delay it.
            indexes = await self.indexes.get(segment)
            find_start = partial(_by_index, offset=wanted.offset)
            start = find_start(indexes)
            most = min(most, (indexes.end_position_for(wanted.offset) or segment_size) - start.position)
        else:
            return None
        position = start.position
        if position >= segment_size:
            return Taken([], 0, position, -1)
        with ChunkReader(self.cache, segment) as chunks:
            first = position // chunks.chunk_bytes
            if not may_wait and not self.cache.has(segment, first):
                return None
            last = (min(position + most, segment_size) - 1) // chunks.chunk_bytes
            chunks.want_all(range(first, last + 1))
            if may_wait:
                take = partial(take_batches, wanted=wanted)
                taken = await self.look(chunks, start, take, ahead_bytes=wanted.max_bytes, find_start=find_start)
            else:
                try:
                    taken = take_batches(_at_hand(chunks, start, wanted.max_bytes), start, wanted)
                except (BytesMissing, DamagedBatch):
                    return None  # the request that asks for this first will wait, or read it again
            taken = taken._replace(pieces=chunks.lend(taken.pieces))
            reached = taken.position // chunks.chunk_bytes
        for number in range(first, reached):
            self.cache.pass_over(segment, number)
        if place is not None or not may_wait:
            ahead = -(-self.settings.kbroker_remote_read_ahead_bytes // self.cache.chunk_bytes)
            read_ahead(self.cache, segment, max(last, reached), count=ahead, following=partial(self._following, key))
        return taken

    async def look(
        self,
        chunks: ChunkReader,
        start: Start,
        look: Callable[[Window, Start], Result],
        *,
        ahead_bytes: int = 0,
        find_start: FindStart | None = None,
    ) -> Result:
        """The result of `look` for the bytes from a position on. `look` is called again after missing bytes were
        fetched. Of ahead_bytes it gets only what is in memory.

        Damaged chunks are fetched again, once. If they are still damaged and `find_start` is given, the index is
        rebuilt and the start computed again.
        Errors  RemoteStorageError: the segment is damaged in the tier
        """
        segment = chunks.segment
        was_reread = False
        while True:
            first = start.position // chunks.chunk_bytes
            try:
                await chunks.get(first)
                return await _look_at(chunks, start, look, ahead_bytes)
            except DamagedBatch as damage:
                self.counters.damaged_batches += 1
                if not was_reread:
                    was_reread = True
                    for number in range(first, (damage.position + damage.size - 1) // chunks.chunk_bytes + 1):
                        self.counters.reread_chunks += 1
                        chunks.drop(number)
                elif find_start is not None:
                    start = find_start(await self.indexes.get(segment, rebuild=True))
                    find_start = None
                else:
                    # The id in the format of `kbroker tier` and of object names.
                    text = f"segment {uuid_to_text(segment.remote_log_segment_id.id)} is damaged {damage}"
                    raise RemoteStorageError(text) from damage

    # Reading ahead

    def _note(self, key: TopicIdPartition, offset: int, segment: RemoteLogSegmentMetadata, position: int) -> None:
        places = self._places
        places[key, offset] = _Place(segment.remote_log_segment_id, position)
        places.move_to_end((key, offset))
        if len(places) > _REMEMBERED_PLACES:
            places.popitem(last=False)

    def _following(self, key: TopicIdPartition, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """The next segment of the same epoch. It may be wrong: it is only used for reading ahead."""
        epoch = segment.segment_leader_epochs[-1][0]
        return self._metadata.remote_log_segment_metadata(key, epoch, segment.end_offset + 1)


async def _look_at(
    chunks: ChunkReader, start: Start, look: Callable[[Window, Start], Result], ahead_bytes: int
) -> Result:
    """Call `look` with the bytes in memory; fetch more only if it needs them."""
    window = _at_hand(chunks, start, ahead_bytes)
    while True:
        try:
            return look(window, start)
        except BytesMissing as missing:
            while window.end < missing.end:
                window.add(await chunks.get(window.next_chunk, is_needed=True))
        _add_what_is_at_hand(window, chunks, start.position + ahead_bytes)


def _at_hand(chunks: ChunkReader, start: Start, ahead_bytes: int) -> Window:
    """The bytes of a segment that are in memory, from the start on, at most ahead_bytes."""
    window = Window(chunks.segment, start.position // chunks.chunk_bytes, chunks.chunk_bytes)
    _add_what_is_at_hand(window, chunks, start.position + max(ahead_bytes, 1))
    return window


def _add_what_is_at_hand(window: Window, chunks: ChunkReader, end: int) -> None:
    while window.end < min(end, window.segment_size):
        ready = chunks.at_hand(window.next_chunk)
        if ready is None:
            break
        window.add(ready)


def _by_index(indexes: RemoteIndexes, offset: int) -> Start:
    entry = indexes.floor_offset(offset)
    if entry is None:
        return Start(0, indexes.start_offset)
    return Start(entry.position, last_offset=entry.last_offset)
