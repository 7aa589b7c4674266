"""A cache for the indexes of remote segments: on the local disk, with a size limit, and the hot ones in memory.

Readers get the bytes and not the files (`RemoteIndexes`), so an eviction never affects a reader, and no release is
needed. New files are written under temporary names. They are renamed under one lock, together with the update of the
table. So an eviction never meets the files of the load that follows it.

Everything that is read from disk is verified by checksums; damaged files are dropped and fetched again. An index that
is damaged or missing in the tier is rebuilt from the segment. Concurrent requests for a segment share one fetch. The
directory is created for the first index.

Source  RemoteIndexCache of Apache Kafka 4.3.1; KAFKA-15481, KAFKA-17184 and KAFKA-15511 for known bugs
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.index import CorruptIndex
from kbroker.storage.log import ignore
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.index_files import IndexFiles, size_of, stem_of
from kbroker.tiered.indexes import RemoteIndexes, checked_offsets, checked_times, checked_transactions, rebuilt
from kbroker.tiered.unwritten_indexes import Load, Unwritten, UnwrittenIndexes

DIRECTORY: Final = "remote-log-index-cache"
DEFAULT_TTL_MS: Final = 15 * 60 * 1000
RESIDENT_BYTES: Final = 32 << 20


@dataclass(slots=True)
class IndexCacheCounters:
    """Counts since the cache was created."""

    resident_hits: int = 0
    disk_hits: int = 0
    fetches: int = 0
    evictions: int = 0
    damaged_files: int = 0
    rebuilds: int = 0
    write_errors: int = 0


@dataclass(slots=True)
class _Entry:
    """The cached files of one segment. Units: used_ms is monotonic."""

    stem: str
    size_bytes: int
    used_ms: int


class RemoteIndexCache:
    """See the module's docstring. All methods but `resident` may block; all are thread-safe.

    Units  max_bytes limits the files, whose size is size_bytes; resident_bytes is the memory in use; an entry that is
           unused for ttl_ms is removed, never if -1
    """

    def __init__(
        self,
        data_directory: str,
        storage: RemoteStorageManager,
        *,
        disk: Disk,
        now_ms: Callable[[], int],
        max_bytes: int,
        ttl_ms: int = DEFAULT_TTL_MS,
        resident_bytes: int = RESIDENT_BYTES,
        interval_bytes: int = 4096,
        report: Callable[[str], None] = ignore,
    ) -> None:
        self.directory = f"{data_directory}/{DIRECTORY}"
        self.counters = IndexCacheCounters()
        self._storage = storage
        self._now_ms = now_ms
        self._max_bytes = max_bytes
        self._ttl_ms = ttl_ms
        self._resident_limit, self._interval_bytes = resident_bytes, interval_bytes
        self._report = report
        self._files = IndexFiles(disk, self.directory, report)
        self._names = threading.Lock()  # held while names in the directory change; taken before the other
        self._tables = threading.Lock()  # held for moments, never over I/O
        self._entries: OrderedDict[UUID, _Entry] = OrderedDict()  # least recently used first
        self._resident: OrderedDict[UUID, RemoteIndexes] = OrderedDict()
        self._loads: dict[UUID, Load] = {}
        self._unwritten = UnwrittenIndexes()
        self.size_bytes = self.resident_bytes = self._writes = 0
        self._is_started = False

    def __len__(self) -> int:
        return len(self._entries)

    # --- queries ------------------------------------------------------------------------------------------------------

    def resident(self, segment_id: UUID) -> RemoteIndexes | None:
        """The indexes if they are in memory. Does no I/O, so the event loop may call it."""
        with self._tables:
            found = self._resident.get(segment_id)
            if found is not None:
                self._resident.move_to_end(segment_id)
                self._touch(segment_id)
                self.counters.resident_hits += 1
            return found

    def indexes(
        self, metadata: RemoteLogSegmentMetadata, on_found: Callable[[RemoteIndexes], object] | None = None
    ) -> RemoteIndexes:
        """The indexes of a finished segment, from memory, the disk or the tier. Indexes from the tier are passed to
        on_found at once, and `write_down` writes them later unless too much is unwritten: writing takes twice as long
        as fetching from a directory, and would delay readers. Without on_found they are on disk at the return.

        Errors  RemoteStorageError: neither indexes nor segment are usable (RemoteResourceNotFound: the tier does not
                have them); RetriableRemoteStorageError if the tier cannot be read now
        """
        segment_id = metadata.remote_log_segment_id.id
        found = self.resident(segment_id)
        if found is not None:
            return found
        with self._tables:
            running = self._loads.get(segment_id)
            if running is None:
                mine = self._loads[segment_id] = Load()
        if running is not None:
            return running.result.result()
        return self._run(mine, metadata, partial(self._found, on_found=on_found))

    def rebuild(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """Drop indexes that do not fit their segment, and rebuild them from the segment's bytes.

        Errors  as for `indexes`
        """
        segment_id = metadata.remote_log_segment_id.id
        mine = Load()
        with self._tables:
            self._disown(segment_id)
            self._loads[segment_id] = mine
        self._drop([segment_id])
        return self._run(mine, metadata, self._rebuilt)

    def _run(
        self,
        mine: Load,
        metadata: RemoteLogSegmentMetadata,
        load: Callable[[Load, RemoteLogSegmentMetadata], RemoteIndexes],
    ) -> RemoteIndexes:
        segment_id = metadata.remote_log_segment_id.id
        try:
            made = load(mine, metadata)
        except BaseException as error:
            with self._tables:
                self._end(segment_id, mine)
            mine.result.set_exception(error)
            raise
        with self._tables:
            self._end(segment_id, mine)
            if mine.is_wanted:
                self._hold(segment_id, made)
        mine.result.set_result(made)
        return made

    def _found(
        self, mine: Load, metadata: RemoteLogSegmentMetadata, *, on_found: Callable[[RemoteIndexes], object] | None
    ) -> RemoteIndexes:
        found = self._from_disk(metadata)
        if found is None:
            found = self._fetched(metadata)
            if on_found is not None:
                with self._tables:
                    is_left = self._unwritten.leave(Unwritten(mine, metadata, found))
                on_found(found)
                if is_left:
                    return found
            self._keep(mine, metadata, found)
        return found

    @property
    def has_unwritten(self) -> bool:
        """Whether `write_down` has work."""
        return bool(self._unwritten)

    def write_down(self) -> None:
        """Write the unwritten indexes to disk."""
        while True:
            with self._tables:
                one = self._unwritten.first()
            if one is None:
                return
            self._keep(one.load, one.metadata, one.indexes)
            with self._tables:
                if one.load.is_wanted:  # _keep dropped the older ones, from memory as well
                    self._hold(one.metadata.remote_log_segment_id.id, one.indexes)
                self._unwritten.written(one)

    def _rebuilt(self, mine: Load, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        offsets, times = self._from_segment(metadata)
        made = RemoteIndexes(metadata.start_offset, offsets, times, self._transactions(metadata))
        self._keep(mine, metadata, made)
        return made

    # --- the tier -----------------------------------------------------------------------------------------------------

    def _fetched(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        self.counters.fetches += 1
        try:
            offsets = checked_offsets(self._index(metadata, IndexType.OFFSET), metadata)
            times = checked_times(self._index(metadata, IndexType.TIMESTAMP), metadata)
        except RetriableRemoteStorageError:
            raise
        except (CorruptIndex, RemoteStorageError) as error:
            self._report(f"an index of segment {metadata.remote_log_segment_id.id} is rebuilt from it: {error}")
            offsets, times = self._from_segment(metadata)
        return RemoteIndexes(metadata.start_offset, offsets, times, self._transactions(metadata))

    def _index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        with plugin_errors(f"fetching the {index_type.value} of segment {metadata.remote_log_segment_id.id}"):
            return self._storage.fetch_index(metadata, index_type)

    def _from_segment(self, metadata: RemoteLogSegmentMetadata) -> tuple[bytes, bytes]:
        self.counters.rebuilds += 1
        with (
            plugin_errors(f"fetching segment {metadata.remote_log_segment_id.id}"),
            self._storage.fetch_log_segment(metadata, 0) as stream,
        ):
            return rebuilt(stream, metadata, interval_bytes=self._interval_bytes)

    def _transactions(self, metadata: RemoteLogSegmentMetadata) -> bytes:
        """The transaction index. It cannot be rebuilt, so a damaged one is an error."""
        if metadata.txn_index_empty:
            return b""
        try:
            return checked_transactions(self._index(metadata, IndexType.TRANSACTION), metadata)
        except RemoteResourceNotFound:
            return b""
        except CorruptIndex as error:
            raise RemoteStorageError(f"segment {metadata.remote_log_segment_id.id}: {error}") from error

    # --- the disk -----------------------------------------------------------------------------------------------------

    def _start(self, *, makes_directory: bool = False, waits: bool = True) -> None:
        """Find the files of an earlier broker process; with thousands of files this takes a while. After a disk error
        it is retried. Until it succeeds, reads find their files by name, and no new files are kept.
        """
        if self._is_started or not self._names.acquire(blocking=waits):
            return
        try:
            if self._is_started or (found := self._files.find(makes_directory=makes_directory)) is None:
                return
            for segment_id, stem, size_bytes in found:
                self._admit(segment_id, _Entry(stem, size_bytes, self._now_ms()))
            self._make_room(0)
            self._is_started = True
        except OSError as error:
            self.counters.write_errors += 1
            self._report(f"{self.directory} cannot be used: {error}")
        finally:
            self._names.release()

    def _from_disk(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes | None:
        segment_id = metadata.remote_log_segment_id.id
        with self._tables:
            if self._touch(segment_id) is None and self._is_started:
                return None
        stem = stem_of(metadata.start_offset, segment_id)
        try:
            indexes = RemoteIndexes(metadata.start_offset, *self._files.read(stem))
        except FileNotFoundError:
            if not self._is_started:
                return None
        except (CorruptIndex, OSError) as error:
            self.counters.damaged_files += 1
            self._report(f"{self.directory}/{stem} is dropped and fetched again: {error}")
        else:
            self.counters.disk_hits += 1
            return indexes
        self._drop([segment_id])
        return None

    def _keep(self, mine: Load, metadata: RemoteLogSegmentMetadata, indexes: RemoteIndexes) -> None:
        """Write the files. A failure, such as a full disk, does not affect the request."""
        segment_id = metadata.remote_log_segment_id.id
        files = [indexes.offsets, indexes.times, indexes.transactions]
        entry = _Entry(stem_of(metadata.start_offset, segment_id), size_of(files), self._now_ms())
        self._start(makes_directory=True, waits=False)
        if not self._is_started or entry.size_bytes > self._max_bytes:
            return
        with self._tables:
            self._writes += 1
            unique = str(self._writes)
        try:
            temporary = self._files.write(entry.stem, files, unique=unique)
            with self._names:
                # `remove` clears is_wanted first and then waits for this lock.
                if mine.is_wanted:
                    self._remove_files([segment_id])
                    self._make_room(entry.size_bytes)
                    self._files.publish(entry.stem, temporary)
                    self._admit(segment_id, entry)
                else:
                    self._files.discard(temporary)
        except OSError as error:
            self.counters.write_errors += 1
            self._report(f"{self.directory}/{entry.stem} cannot be kept: {error}")

    # --- removal ------------------------------------------------------------------------------------------------------

    def remove(self, segment_id: UUID) -> None:
        """Forget a segment that will be deleted. The result of a running load is not kept."""
        with self._tables:
            self._disown(segment_id)
        self._drop([segment_id])

    def expire(self) -> None:
        """Remove entries that were unused for ttl_ms. To be called periodically."""
        self._start()
        oldest_ms = self._now_ms() - self._ttl_ms
        with self._tables:
            expired = [segment_id for segment_id, entry in self._entries.items() if entry.used_ms <= oldest_ms]
        if self._ttl_ms >= 0 and expired:
            self.counters.evictions += len(expired)
            self._drop(expired)

    def resize(self, max_bytes: int) -> None:
        """Set a new limit and apply it."""
        self._max_bytes = max_bytes
        with self._names:
            self._make_room(0)

    def close(self) -> None:
        """Write what is unwritten and free the memory; the files stay for the next broker process."""
        self.write_down()
        with self._tables:
            self._resident.clear()
            self.resident_bytes = 0

    def _drop(self, segment_ids: Iterable[UUID]) -> None:
        self._start()
        with self._names:
            self._remove_files(segment_ids)

    def _make_room(self, size_bytes: int) -> None:
        """Evict the least recently used entries. The caller holds `_names`."""
        victims: list[UUID] = []
        with self._tables:
            kept = self.size_bytes + size_bytes
            for segment_id, entry in self._entries.items():
                if kept <= self._max_bytes:
                    break
                victims.append(segment_id)
                kept -= entry.size_bytes
        self.counters.evictions += len(victims)
        self._remove_files(victims)

    def _remove_files(self, segment_ids: Iterable[UUID]) -> None:
        """Remove entries from the tables and then from disk. The caller holds `_names`, so names are not reused."""
        for segment_id in segment_ids:
            with self._tables:
                entry = self._entries.pop(segment_id, None)
                if entry is not None:
                    self.size_bytes -= entry.size_bytes
                self._let_go(segment_id)
            if entry is not None:
                self._files.remove(entry.stem)

    def _admit(self, segment_id: UUID, entry: _Entry) -> None:
        with self._tables:
            self._entries[segment_id] = entry
            self.size_bytes += entry.size_bytes

    # --- tables; the caller holds the lock ----------------------------------------------------------------------------

    def _touch(self, segment_id: UUID) -> _Entry | None:
        entry = self._entries.get(segment_id)
        if entry is not None:
            entry.used_ms = self._now_ms()
            self._entries.move_to_end(segment_id)
        return entry

    def _disown(self, segment_id: UUID) -> None:
        running = self._loads.pop(segment_id, None)
        if running is not None:
            running.is_wanted = False
        self._unwritten.forget(segment_id)
        self._let_go(segment_id)

    def _end(self, segment_id: UUID, load: Load) -> None:
        if self._loads.get(segment_id) is load:
            del self._loads[segment_id]

    def _hold(self, segment_id: UUID, indexes: RemoteIndexes) -> None:
        if indexes.size_bytes > self._resident_limit:
            return
        self._let_go(segment_id)
        self._resident[segment_id] = indexes
        self.resident_bytes += indexes.size_bytes
        while self.resident_bytes > self._resident_limit:
            self._let_go(next(iter(self._resident)))

    def _let_go(self, segment_id: UUID) -> None:
        indexes = self._resident.pop(segment_id, None)
        if indexes is not None:
            self.resident_bytes -= indexes.size_bytes
