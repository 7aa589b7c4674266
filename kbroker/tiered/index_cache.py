"""A cache for the indexes of remote segments: on the local disk, with a size limit, and the hot ones in memory.

Readers get the bytes and not the files (`RemoteIndexes`), so an eviction never affects a reader, and no release is
needed. Indexes from the tier are held in memory first. `write_down` writes them later: writing takes twice as long as
fetching from a directory, and would delay readers. Files are written and removed under one lock, together with the
update of the table. So an eviction never meets the files of the load that follows it.

Everything that is read from disk is verified by checksums; damaged files are dropped and fetched again. An index that
is damaged or missing in the tier is rebuilt from the segment. The directory is created for the first index.

Source  RemoteIndexCache of Apache Kafka 4.3.1; KAFKA-15481, KAFKA-17184 and KAFKA-15511 for known bugs
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.index import CorruptIndex
from kbroker.storage.log_files import ignore
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.index_files import IndexFiles, stem_of, with_checksums
from kbroker.tiered.indexes import RemoteIndexes, checked_offsets, checked_times, checked_transactions, rebuilt
from kbroker.tiered.segment_files import RemoteFile

DIRECTORY: Final = "remote-log-index-cache"
DEFAULT_TTL_MS: Final = 15 * 60 * 1000
RESIDENT_BYTES: Final = 32 << 20
UNWRITTEN_BYTES: Final = 8 << 20
"""If more is unwritten, the next load writes it before it returns."""


@dataclass(slots=True)
class IndexCacheCounters:
    """Counts since the cache was created, with the names of the metric `kbroker_tier_indexes_total`."""

    resident: int = 0
    disk: int = 0
    fetched: int = 0
    evicted: int = 0
    damaged: int = 0
    rebuilt: int = 0
    write_error: int = 0


class _HasSize(Protocol):
    @property
    def size_bytes(self) -> int: ...


Item = TypeVar("Item", bound=_HasSize)


class _Table(OrderedDict[UUID, Item]):
    """Items by segment, the least recently used first, with their total size."""

    size_bytes = 0

    def put(self, segment_id: UUID, item: Item) -> None:
        self.drop(segment_id)
        self[segment_id] = item
        self.size_bytes += item.size_bytes

    def drop(self, segment_id: UUID) -> Item | None:
        item = self.pop(segment_id, None)
        if item is not None:
            self.size_bytes -= item.size_bytes
        return item

    def take_oldest(self) -> tuple[UUID, Item]:
        segment_id, item = self.popitem(last=False)
        self.size_bytes -= item.size_bytes
        return segment_id, item


@dataclass(slots=True)
class _Entry:
    """The cached files of one segment. Units: used_ms is monotonic."""

    stem: str
    size_bytes: int
    used_ms: int


class RemoteIndexCache:
    """See the module's docstring. All methods but `resident` may block; all are thread-safe.

    Units  max_bytes limits the files, resident_bytes the indexes in memory; an entry that is unused for ttl_ms is
           removed, never if -1
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
        self._names = threading.Lock()  # held while files are written or removed; taken before the other
        self._tables = threading.Lock()  # held for moments, never over I/O
        self._entries: _Table[_Entry] = _Table()
        self._resident: _Table[RemoteIndexes] = _Table()
        self._unwritten: _Table[RemoteIndexes] = _Table()
        self._is_started = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return self._entries.size_bytes

    @property
    def has_unwritten(self) -> bool:
        """Whether `write_down` has work."""
        return bool(self._unwritten)

    # --- queries ------------------------------------------------------------------------------------------------------

    def resident(self, segment_id: UUID) -> RemoteIndexes | None:
        """The indexes if they are in memory. Does no I/O, so the event loop may call it."""
        with self._tables:
            found = self._resident.get(segment_id)
            if found is not None:
                self._resident.move_to_end(segment_id)
                self._touch(segment_id)
                self.counters.resident += 1
            return found

    def indexes(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """The indexes of a finished segment, from memory, the disk or the tier.

        Errors  RemoteStorageError: neither indexes nor segment are usable (RemoteResourceNotFound: the tier does not
                have them); RetriableRemoteStorageError if the tier cannot be read now
        """
        found = self.resident(metadata.remote_log_segment_id.id) or self._from_disk(metadata)
        return self._kept(metadata, self._fetched(metadata)) if found is None else found

    def rebuild(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """Drop indexes that do not fit their segment, and rebuild them from the segment's bytes.

        Errors  as for `indexes`
        """
        self.remove(metadata.remote_log_segment_id.id)
        return self._kept(metadata, self._from_segment(metadata))

    def _kept(self, metadata: RemoteLogSegmentMetadata, indexes: RemoteIndexes) -> RemoteIndexes:
        segment_id = metadata.remote_log_segment_id.id
        with self._tables:
            self._hold(segment_id, indexes)
            self._unwritten.put(segment_id, indexes)
        if self._unwritten.size_bytes > UNWRITTEN_BYTES:
            self.write_down()
        return indexes

    # --- the tier -----------------------------------------------------------------------------------------------------

    def _fetched(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        self.counters.fetched += 1
        try:
            offsets = checked_offsets(self._index(metadata, IndexType.OFFSET), metadata)
            times = checked_times(self._index(metadata, IndexType.TIMESTAMP), metadata)
        except RetriableRemoteStorageError:
            raise
        except (CorruptIndex, RemoteStorageError) as error:
            self._report(f"an index of segment {metadata.remote_log_segment_id.id} is rebuilt from it: {error}")
            return self._from_segment(metadata)
        return RemoteIndexes(metadata.start_offset, offsets, times, self._transactions(metadata))

    def _index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        with plugin_errors(f"fetching the {index_type.value} of segment {metadata.remote_log_segment_id.id}"):
            return self._storage.fetch_index(metadata, index_type)

    def _from_segment(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        self.counters.rebuilt += 1
        with plugin_errors(f"fetching segment {metadata.remote_log_segment_id.id}"):
            file = RemoteFile(self._storage, metadata, "the segment")
            offsets, times = rebuilt(file, metadata, interval_bytes=self._interval_bytes)
        return RemoteIndexes(metadata.start_offset, offsets, times, self._transactions(metadata))

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

    def _start(self) -> None:
        """Find the files of an earlier broker process; with thousands of files this takes a while. After a disk error
        it is retried. Until it succeeds, reads find their files by name, and no new files are kept. The caller holds
        `_names`.
        """
        if self._is_started:
            return
        try:
            found = self._files.find()
        except OSError as error:
            self.counters.write_error += 1
            self._report(f"{self.directory} cannot be used: {error}")
            return
        with self._tables:
            for segment_id, stem, size_bytes in found:
                self._entries.put(segment_id, _Entry(stem, size_bytes, self._now_ms()))
        self._make_room(0)
        self._is_started = True

    def _from_disk(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes | None:
        segment_id = metadata.remote_log_segment_id.id
        with self._tables:
            if self._touch(segment_id) is None and self._is_started:
                return None
        stem = stem_of(metadata.start_offset, segment_id)
        try:
            found = RemoteIndexes(metadata.start_offset, *self._files.read(stem))
        except FileNotFoundError:
            return None
        except (CorruptIndex, OSError) as error:
            self.counters.damaged += 1
            self._report(f"{self.directory}/{stem} is dropped and fetched again: {error}")
            self.remove(segment_id)
            return None
        self.counters.disk += 1
        with self._tables:
            self._hold(segment_id, found)
        return found

    def write_down(self) -> None:
        """Write the unwritten indexes to disk. A failure, such as a full disk, affects no reader."""
        with self._names:
            while (oldest := self._take_unwritten()) is not None:
                self._start()
                if self._is_started:
                    self._write(*oldest)

    def _take_unwritten(self) -> tuple[UUID, RemoteIndexes] | None:
        with self._tables:
            return self._unwritten.take_oldest() if self._unwritten else None

    def _write(self, segment_id: UUID, indexes: RemoteIndexes) -> None:
        """Replace the files of a segment. The caller holds `_names`."""
        files = with_checksums(indexes.offsets, indexes.times, indexes.transactions)
        entry = _Entry(stem_of(indexes.start_offset, segment_id), sum(map(len, files)), self._now_ms())
        self._remove(segment_id)
        if entry.size_bytes > self._max_bytes:
            return
        self._make_room(entry.size_bytes)
        try:
            self._files.write(entry.stem, files)
        except OSError as error:
            self.counters.write_error += 1
            self._report(f"{self.directory}/{entry.stem} cannot be kept: {error}")
            return
        with self._tables:
            self._entries.put(segment_id, entry)

    # --- removal ------------------------------------------------------------------------------------------------------

    def remove(self, segment_id: UUID) -> None:
        """Forget a segment that will be deleted. If its indexes are being loaded, they are kept until they expire."""
        with self._tables:
            self._resident.drop(segment_id)
            self._unwritten.drop(segment_id)
        with self._names:
            self._start()
            self._remove(segment_id)

    def expire(self) -> None:
        """Remove entries that were unused for ttl_ms. To be called periodically."""
        if self._ttl_ms < 0:
            return
        oldest_ms = self._now_ms() - self._ttl_ms
        with self._names:
            self._start()
            with self._tables:
                expired = [segment_id for segment_id, entry in self._entries.items() if entry.used_ms <= oldest_ms]
                for segment_id in expired:
                    self._resident.drop(segment_id)
            self.counters.evicted += len(expired)
            for segment_id in expired:
                self._remove(segment_id)

    def resize(self, max_bytes: int) -> None:
        """Set a new limit and apply it."""
        self._max_bytes = max_bytes
        with self._names:
            self._make_room(0)

    def _make_room(self, size_bytes: int) -> None:
        """Evict the least recently used entries. The caller holds `_names`."""
        while self._entries and self._entries.size_bytes + size_bytes > self._max_bytes:
            with self._tables:
                _, entry = self._entries.take_oldest()
            self.counters.evicted += 1
            self._files.remove(entry.stem)

    def _remove(self, segment_id: UUID) -> None:
        """Remove an entry from the table and then from disk. The caller holds `_names`, so names are not reused."""
        with self._tables:
            entry = self._entries.drop(segment_id)
        if entry is not None:
            self._files.remove(entry.stem)

    # --- tables; the caller holds the lock ----------------------------------------------------------------------------

    def _touch(self, segment_id: UUID) -> _Entry | None:
        entry = self._entries.get(segment_id)
        if entry is not None:
            entry.used_ms = self._now_ms()
            self._entries.move_to_end(segment_id)
        return entry

    def _hold(self, segment_id: UUID, indexes: RemoteIndexes) -> None:
        if indexes.size_bytes > self._resident_limit:
            return
        self._resident.put(segment_id, indexes)
        while self._resident.size_bytes > self._resident_limit:
            self._resident.take_oldest()
