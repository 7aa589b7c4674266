"""One segment of a log: a `.log` file of batches and its two sparse indexes.

The `.log` file of a closed segment is never written again. Memory holds only names, sizes and timestamps of closed
segments; reads open their files. `Log` writes the last segment, the active one, and keeps its size, its largest
timestamp and its unwritten index entries here.

Every look-up is checked: an index entry gives the last offset of the batch at its position, and the header at that
position must agree. An index that is wrong, missing or truncated is rebuilt from the log immediately.

Source  LogSegment of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from mypy_extensions import mypyc_attr

from kbroker.storage.batches import SCAN_BYTES, scan_headers
from kbroker.storage.durable import lacks_space, sync
from kbroker.storage.files import FilePool, OpenFile
from kbroker.storage.index import CorruptIndex, Index, OffsetIndex, TimeIndex
from kbroker.storage.transaction_index import LAST_OFFSET, MAX_OFFSET, AbortedTransaction, TransactionIndex
from wire.batch_header import FRAME_SIZE, HEADER_SIZE, BatchHeader

MAX_RELATIVE_OFFSET: Final = 0x7FFF_FFFF
UNKNOWN: Final = -2  # the largest timestamp has not been looked up; -1 is Kafka's "none"
BORDER_BYTES: Final = 4096  # the default index interval: few batch boundaries are farther from an index entry
CHECKED_BYTES: Final = 1 << 18  # how much of the log is compared with the last time index entry

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
THROUGH_SUFFIX: Final = ".through" + DELETED_SUFFIX  # this segment and all before it are deleted
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(offset: int, suffix: str) -> str:
    """The file name for an offset; 20 digits make names sort by offset."""
    return f"{offset:020d}{suffix}"


@mypyc_attr(serializable=True)
@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """See the module docstring.

    Units      size and positions in bytes; *_timestamp in ms of wall time, -1 for none
    Shape      max_timestamp_offset is the last offset of the batch with the largest timestamp
    Invariant  base_offset <= every offset <= base_offset + 2^31-1
    """

    files: FilePool
    directory: str
    base_offset: int
    _: KW_ONLY
    interval_bytes: int
    size: int = 0
    created_ms: int = 0
    jitter_ms: int = 0
    is_active: bool = False
    is_finished: bool = False  # a roll has completed its index files
    is_gone: bool = False  # its files are being renamed or unlinked, or already are
    extension: str = ""  # of all its file names, behind the suffix
    replaced: OpenFile | None = None  # its log, once a cleaned segment takes its name
    log_path: str = field(init=False)
    first_timestamp: int = field(init=False)
    max_timestamp: int = field(init=False)
    max_timestamp_offset: int = field(init=False)
    last_index_position: int = 0
    index_entries: int = 0
    time_entries: int = 0
    unwritten_entries: int = 0
    indexed_timestamp: int = -1
    has_unsynced_files: bool = False
    _offset_index: Index | None = None
    _time_index: Index | None = None
    _transaction_index: TransactionIndex | None = None

    def __post_init__(self) -> None:
        self.log_path = self.path(LOG_SUFFIX)
        self.first_timestamp = self.max_timestamp = UNKNOWN if self.size else -1
        self.max_timestamp_offset = self.base_offset

    @classmethod
    def create(
        cls,
        files: FilePool,
        directory: str,
        base_offset: int,
        *,
        interval_bytes: int,
        created_ms: int,
        extension: str = "",
    ) -> Segment:
        """Create the files of an empty segment, truncating files that a failed attempt left."""
        segment = cls(
            files, directory, base_offset, interval_bytes=interval_bytes, created_ms=created_ms, extension=extension
        )
        segment.has_unsynced_files = True
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
            opened = files.create(segment.path(suffix))
            if opened.file.size():
                opened.file.truncate(0)
        segment.begin_indexes()
        segment.reset_transactions()
        return segment

    def begin_indexes(self) -> None:
        """Treat the log and both indexes as empty; new entries stay in memory until they are written out."""
        self._offset_index = OffsetIndex(self.files, self.path(INDEX_SUFFIX), written=0)
        self._time_index = TimeIndex(self.files, self.path(TIME_INDEX_SUFFIX), written=0)
        self.first_timestamp = self.max_timestamp = self.indexed_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self.last_index_position = self.index_entries = self.time_entries = self.unwritten_entries = 0

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}{self.extension}"

    def open(self) -> OpenFile:
        """The log. A reader that still uses a replaced segment gets the file that it had.

        `replaced` is set before the name is taken, so a reader that finds it unset has opened the right file.
        """
        try:
            opened = self.files.open(self.log_path)
        except FileNotFoundError:
            if self.replaced is None:
                raise
            return self.replaced
        return opened if self.replaced is None else self.replaced

    def use(self, files: FilePool) -> None:
        """Use another pool for opening files from now on."""
        self.files = files
        for index in (self._offset_index, self._time_index, self._transaction_index):
            if index is not None:
                index.files = files

    @property
    def offset_index(self) -> Index:
        index = self._offset_index
        if index is None:
            index = self._offset_index = OffsetIndex(self.files, self.path(INDEX_SUFFIX))
        return index

    @property
    def time_index(self) -> Index:
        index = self._time_index
        if index is None:
            index = self._time_index = TimeIndex(self.files, self.path(TIME_INDEX_SUFFIX))
        return index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The aborted transactions whose markers are in this segment; most segments have none, and no file."""
        index = self._transaction_index
        if index is None:
            index = self._transaction_index = TransactionIndex(self.files, self.path(TXN_INDEX_SUFFIX))
        return index

    def reset_transactions(self, *, has_file: bool = True) -> None:
        """Start an empty transaction index; removes the file of an earlier one."""
        path = self.path(TXN_INDEX_SUFFIX)
        if has_file:
            self.files.forget(path)
            with suppress(FileNotFoundError):
                self.files.disk.unlink(path)
        self._transaction_index = TransactionIndex(self.files, path, written=0)

    # --- writing ------------------------------------------------------------------------------------------------------

    def note_batch(self, header: BatchHeader, position: int) -> None:
        """Record the batch at `position`: its timestamps, and index entries if they are due."""
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if position - self.last_index_position > self.interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.index_entries += 1
            self.unwritten_entries += 1
            self.add_time_entry()
            self.last_index_position = position
        self.size = position + header.batch_length + FRAME_SIZE

    def add_time_entry(self) -> None:
        """Add the largest timestamp to the time index, unless it is already there."""
        if self.max_timestamp > self.indexed_timestamp:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.indexed_timestamp = self.max_timestamp
            self.time_entries += 1
            self.unwritten_entries += 1

    def aborted_between(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """As `TransactionIndex.between`, also while the segment is replaced. Errors: CorruptIndex."""
        while True:
            index = self.transaction_index
            try:
                found = ([], False) if index.is_empty else index.between(first_offset, end_offset)
            except CorruptIndex:
                if index is self._transaction_index:
                    raise
                continue
            if index is self._transaction_index:
                return found

    def contents(self) -> tuple[OpenFile, TransactionIndex]:
        """What readers need of the files: the log, and the aborted transactions in memory."""
        transactions = TransactionIndex(self.files, self.path(TXN_INDEX_SUFFIX), written=0)
        for one in self.aborted_between(0, MAX_OFFSET)[0]:
            transactions.add(one)
        return self.open(), transactions

    def give_up_names(self, contents: tuple[OpenFile, TransactionIndex]) -> None:
        """Let readers continue with this segment, although a cleaned one is about to get the names of its files."""
        self.replaced, self._transaction_index = contents
        self.is_gone = True

    def add_aborted(self, one: AbortedTransaction) -> None:
        """Add a transaction whose abort marker was appended to this segment."""
        self.transaction_index.add(one)
        self.unwritten_entries += 1

    def write_indexes(self) -> None:
        """Write new entries to the index files; done by rolls, flushes and closes."""
        if self.replaced is not None:
            return  # the names of its files belong to a cleaned segment
        if self._offset_index is not None:
            self._offset_index.write_out()
        if self._time_index is not None:
            self._time_index.write_out()
        if self._transaction_index is not None:
            self._transaction_index.write_out()
        self.unwritten_entries = 0

    def sync(self, *, with_indexes: bool) -> None:
        """Make written data durable. The active segment's indexes need no sync, because recovery rebuilds them."""
        sync(self.open().file)
        if with_indexes:
            self.write_indexes()
            self.offset_index.sync()
            self.time_index.sync()
            if not self.transaction_index.is_empty:
                self.transaction_index.sync()

    # --- looking up ---------------------------------------------------------------------------------------------------

    def scan(self, position: int, *, chunk_bytes: int = SCAN_BYTES) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from a position on, which must be the start of a batch."""
        return scan_headers(self.open().file, position, self.size, chunk_bytes=chunk_bytes)

    def find(self, offset: int, *, end: int | None = None) -> tuple[int, BatchHeader] | None:
        """(position, header) of the first batch that ends at or after `offset`; None if there is none before `end`."""
        stop = self.size if end is None else end
        file = self.open().file
        start = self._floor_position(offset)
        for position, header in scan_headers(file, start, stop):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
        return None

    def _floor_position(self, offset: int) -> int:
        """Where a scan for `offset` may start: the start of a batch at most about one index interval before it."""
        try:
            index = self.offset_index
            if not index.is_checked:
                # Check both ends of an index before the first search.
                for end in (index.first(), index.last()):
                    if end is not None:
                        self._check_entry(end)
                index.note_checked()
            entry = index.floor(offset - self.base_offset)
            if entry is None:
                return 0
            self._check_entry(entry)
        except CorruptIndex:
            entry = self._floor_in_rebuilt(lambda: self.offset_index, offset - self.base_offset)
        return entry[1] if entry is not None else 0

    def _floor_in_rebuilt(self, index: Callable[[], Index], target: int) -> tuple[int, int] | None:
        """Rebuild the index and look up again; None, which means a full scan, if that does not help."""
        try:
            return index().floor(target) if self.rebuild_indexes() else None
        except CorruptIndex:
            return None

    def _check_entry(self, entry: tuple[int, int]) -> None:
        relative_offset, position = entry
        data = self.open().file.pread(HEADER_SIZE, position) if 0 <= position < self.size else b""
        if (
            len(data) < HEADER_SIZE
            or (header := BatchHeader(data)).last_offset - self.base_offset != relative_offset
            or header.magic != 2
        ):
            raise CorruptIndex(f"no batch at {position} ends at offset {self.base_offset + relative_offset}")

    def position_before(self, limit: int, *, start: int) -> tuple[int, int]:
        """(position, next offset or -1) of the last batch boundary at or before `limit`; `start` is a boundary."""
        border, next_offset = start, -1
        try:
            entry = self.offset_index.floor(limit, field=1)
            if entry is not None and entry[1] > start:
                self._check_entry(entry)
                border = entry[1]
        except CorruptIndex:
            self.rebuild_indexes()
        for position, header in self.scan(border, chunk_bytes=BORDER_BYTES):
            if position + header.size > limit:
                return position, header.base_offset if next_offset < 0 else next_offset
            border, next_offset = position + header.size, header.next_offset
        return border, next_offset

    def last_batch(self) -> BatchHeader | None:
        last = None
        start = self._floor_position(self.base_offset + MAX_RELATIVE_OFFSET)
        for _, header in self.scan(start):
            last = header
        return last

    def load_timestamps(self) -> None:
        """Look up the largest timestamp of a cleanly closed segment: the last entry of its time index."""
        if self.max_timestamp != UNKNOWN:
            return
        try:
            entry = self.time_index.last()
            if entry is None:
                # Either no record has a timestamp or the index is damaged; a rebuild from the log finds out.
                raise CorruptIndex(f"{self.time_index.path} has no entry")
            self._check_time_entry(entry, upto=self.size)
            self.max_timestamp, self.max_timestamp_offset = entry[0], self.base_offset + entry[1]
        except CorruptIndex:
            self.rebuild_indexes()

    def newest_ms(self) -> int:
        """The largest timestamp of a record. If no record has one, the age of the file counts, as in Kafka."""
        self.load_timestamps()
        return self.max_timestamp if self.max_timestamp >= 0 else self.files.disk.modified_ms(self.log_path)

    def _check_time_entry(self, entry: tuple[int, int], *, upto: int) -> None:
        """Check the last entry against its batch and the following batches up to a limit: none may be later."""
        found = self.find(self.base_offset + entry[1])
        if found is None or found[1].max_timestamp != entry[0]:
            raise CorruptIndex(f"{self.time_index.path}: the batch at offset {entry[1]} is not at {entry[0]}")
        for position, header in self.scan(found[0]):
            if position > min(upto, found[0] + CHECKED_BYTES):
                return
            if header.max_timestamp > entry[0]:
                raise CorruptIndex(
                    f"{self.time_index.path}: its last entry is earlier than offset {header.base_offset}"
                )

    def batches_since(self, timestamp: int, start_offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches that may have a record at or after `timestamp` and `start_offset`."""
        try:
            self.time_index.check_order()
            entry = self.time_index.floor(timestamp)
        except CorruptIndex:
            entry = self._floor_in_rebuilt(lambda: self.time_index, timestamp)
        from_offset = self.base_offset + (entry[1] if entry is not None else 0)
        start = self._floor_position(max(from_offset, start_offset))
        for position, header in self.scan(start):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                yield position, header

    # --- repair -------------------------------------------------------------------------------------------------------

    def rebuild_indexes(self) -> bool:
        """Rebuild both indexes of a closed segment from the headers of the log; returns False for the active segment.

        Another thread may be writing the active segment's indexes; look-ups in it scan further until it is closed or
        loaded. If another thread removes the segment during the rebuild, the new index files are removed again.
        """
        if self.is_active or self.is_gone:
            return False
        self._rebuild()
        self._remove_orphaned_indexes()
        return True

    def _remove_orphaned_indexes(self) -> None:
        if self.is_gone and not self.files.disk.exists(self.log_path):
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                self.files.forget(self.path(suffix))
                with suppress(FileNotFoundError):
                    self.files.disk.unlink(self.path(suffix))

    def _rebuild(self) -> None:
        """Rebuild both indexes. Other threads may read the segment or rebuild it too: they see no change until the
        rebuild is complete, and a second rebuild writes the same bytes.
        """
        made = Segment(self.files, self.directory, self.base_offset, interval_bytes=self.interval_bytes)
        made.begin_indexes()
        for position, header in self.scan(0, chunk_bytes=1 << 20):
            # No checksum covers the base offset. One that is outside this segment is damaged and is not indexed.
            if 0 <= header.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
                made.note_batch(header, position)
        made.add_time_entry()
        made.write_indexes()
        for index in (made.offset_index, made.time_index):
            index.truncate(index.entries)  # drop old entries after the new ones
        self._offset_index, self._time_index = made._offset_index, made._time_index
        self.max_timestamp_offset, self.max_timestamp = made.max_timestamp_offset, made.max_timestamp
        self.first_timestamp, self.indexed_timestamp = made.first_timestamp, made.indexed_timestamp
        self.last_index_position = made.last_index_position
        self.index_entries, self.time_entries, self.unwritten_entries = made.index_entries, made.time_entries, 0
        self.has_unsynced_files = True

    def truncate(self, position: int, offset: int) -> None:
        """Truncate the log at the start of a batch and the indexes below `offset`."""
        self.open().file.truncate(position)
        self.size = position
        relative_offset = offset - self.base_offset
        self.offset_index.truncate_below(relative_offset)
        self.time_index.truncate_below(relative_offset, field=1)
        if not self.transaction_index.is_empty:
            self.transaction_index.truncate_below(offset, field=LAST_OFFSET)
        self.has_unsynced_files = True

    def resume(self) -> BatchHeader | None:
        """Load from the files what appends to this active segment need; returns the last batch.

        Reads the batches after the last index entry, so that indexing continues as if the log had never been closed.
        """
        self.is_finished = False
        if not self.size:
            self.begin_indexes()
            return None
        try:
            time_entry = self.time_index.last()
            entry = self.offset_index.last()
            if entry is not None:
                self._check_entry(entry)
            if time_entry is not None:
                self._check_time_entry(time_entry, upto=entry[1] if entry is not None else 0)
            elif entry is not None and BatchHeader(self.open().file.pread(HEADER_SIZE, entry[1])).max_timestamp >= 0:
                raise CorruptIndex(f"{self.time_index.path} has no entry")
        except (CorruptIndex, FileNotFoundError):
            self._rebuild()
            time_entry, entry = self.time_index.last(), self.offset_index.last()
        self.max_timestamp = self.indexed_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        if time_entry is not None:
            self.indexed_timestamp = time_entry[0]
            self.max_timestamp, self.max_timestamp_offset = time_entry[0], self.base_offset + time_entry[1]
        self.last_index_position = entry[1] if entry is not None else 0
        self.index_entries, self.time_entries = self.offset_index.entries, self.time_index.entries
        self.first_timestamp = UNKNOWN
        last: BatchHeader | None = None
        end = self.size
        for position, header in self.scan(self.last_index_position):
            self.note_batch(header, position)
            last = header
        if last is None or self.size != end:
            raise CorruptIndex(f"{self.log_path} holds no batch at {0 if last is None else self.size}")
        if self.first_timestamp == UNKNOWN:
            self.first_timestamp = BatchHeader(self.open().file.pread(HEADER_SIZE, 0)).max_timestamp
        return last

    def reset_indexes(self) -> None:
        """Empty the indexes before the log is read."""
        self.begin_indexes()
        self.reset_transactions()
        self.offset_index.truncate(0)
        self.time_index.truncate(0)

    def write_transactions(self) -> None:
        """Write out a transaction index that was made again from the log; on a full disk it stays in memory."""
        try:
            self.transaction_index.write_out()
        except OSError as error:
            if not lacks_space(error):
                raise
        self.has_unsynced_files = True

    def finish_indexes(self) -> None:
        """Write out the indexes of a log that was read to its end."""
        self.add_time_entry()
        try:
            self.write_indexes()
        except OSError as error:
            # On a full disk the entries stay in memory until a flush, roll or close has space for them.
            if not lacks_space(error):
                raise
        self.has_unsynced_files = True
