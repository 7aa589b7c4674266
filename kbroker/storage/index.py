"""The sparse indexes of a segment.

`.index` has an 8-byte entry (relative offset, position) for one batch every index.interval.bytes: the batch's last
offset and its start position. `.timeindex` has 12-byte entries (timestamp, relative offset): the largest timestamp so
far and the last offset of the batch that holds it. A time entry is written with an offset entry if the timestamp has
grown, and once more when the segment closes. Both indexes ascend and are searched by bisection. Offsets are relative to
the segment's base_offset; this module uses relative offsets only.

Little of an index stays in memory. A search reads one entry per bisection step and then one block of 512 entries. That
block is cached with the open file, because the next search usually needs it. New entries collect in memory and are
written a block at a time, or on a flush, roll or close. After a crash the index is rebuilt from the log.

Kafka preallocates the indexes of its active segment, so zeros at the end of a file are not entries.

Source  OffsetIndex and TimeIndex of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import ClassVar, Final

from kbroker.storage.durable import sync
from kbroker.storage.files import FilePool, OpenFile

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
TRANSACTION_ENTRY: Final = Struct(">hqqqq")
"""Version 0, producer_id, first_offset, last_offset, last_stable_offset of an aborted transaction (`.txnindex`)."""
BLOCK_ENTRIES: Final = 512

Entry = tuple[int, int]


class CorruptIndex(Exception):
    """The index does not match its segment and must be rebuilt."""


class Index:
    """One index file, including the entries that are not written to it yet.

    Shape       the entries of the file, then `_tail`; all ascend in the field that is searched
    Units       entries count entries, positions are bytes
    Concurrent  one writer; `floor` may run in other threads. Writing out first raises the number of entries in the file
                and then replaces the tail, so that a search finds every entry in either order of its two reads
    """

    __slots__ = ("_tail", "_written", "files", "path")

    _entry: ClassVar[Struct]

    def __init__(self, files: FilePool, path: str, *, written: int = -1) -> None:
        self.files = files
        self.path = path
        self._written = written
        self._tail = bytearray()

    @property
    def entries(self) -> int:
        return self._file_entries() + len(self._tail) // self._entry.size

    def append(self, key: int, value: int) -> None:
        self._tail += self._entry.pack(key, value)

    def last(self) -> Entry | None:
        if self._tail:
            return self._entry.unpack_from(self._tail, len(self._tail) - self._entry.size)
        written = self._file_entries()
        return self._read(self._open(), written - 1) if written else None

    def first(self) -> Entry | None:
        if self._file_entries():
            return self._read(self._open(), 0)
        return self._entry.unpack_from(self._tail, 0) if self._tail else None

    @property
    def is_checked(self) -> bool:
        """Whether the file was compared with the log since it was opened; also true if it has no entries."""
        return not self._file_entries() or self._open().is_checked

    def note_checked(self) -> None:
        self._open().is_checked = True

    def floor(self, target: int, *, field: int = 0) -> Entry | None:
        """The last entry whose field (0 or 1) is at most `target`; None if every one is larger."""
        tail = self._tail
        if tail:
            first: Entry = self._entry.unpack_from(tail, 0)
            if first[field] <= target:
                return self._floor_in(tail, field, target)
        written = self._file_entries()
        if not written:
            return None
        file = self._open()
        block = file.block
        if block is not None:
            start, data = block
            lowest: Entry = self._entry.unpack_from(data, 0)
            highest: Entry = self._entry.unpack_from(data, len(data) - self._entry.size)
            is_last = start + len(data) // self._entry.size >= written
            if lowest[field] <= target and (is_last or target < highest[field]):
                return self._floor_in(data, field, target)
        return self._floor_in_file(file, written, field, target)

    def _floor_in_file(self, file: OpenFile, written: int, field: int, target: int) -> Entry | None:
        low, high = 0, (written - 1) // BLOCK_ENTRIES
        while low < high:
            middle = (low + high + 1) // 2
            if self._read(file, middle * BLOCK_ENTRIES)[field] <= target:
                low = middle
            else:
                high = middle - 1
        start = low * BLOCK_ENTRIES
        size = self._entry.size
        data = file.file.pread(min(BLOCK_ENTRIES, written - start) * size, start * size)
        if not data or len(data) % size:
            raise CorruptIndex(f"{self.path} ends before entry {written}")
        file.block = (start, data)
        return self._floor_in(data, field, target)

    def _floor_in(self, data: bytes | bytearray, field: int, target: int) -> Entry | None:
        unpack, size = self._entry.unpack_from, self._entry.size
        low, high = 0, len(data) // size
        while low < high:  # faster than bisect with a key; this runs for each read far from the tail
            middle = (low + high) // 2
            if unpack(data, middle * size)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return unpack(data, (low - 1) * size) if low else None

    def check_order(self) -> None:
        """Read the whole file once and raise CorruptIndex unless both fields ascend.

        For the time index: a look-up cannot check its entries against the log, and a wrong one would hide records.
        """
        written = self._file_entries()
        if not written:
            return
        file = self._open()
        if file.is_checked:
            return
        data = file.file.pread(written * self._entry.size, 0)
        if len(data) < written * self._entry.size:
            raise CorruptIndex(f"{self.path} ends before entry {written}")
        key, value = -1, -1
        for next_key, next_value in self._entry.iter_unpack(data):
            if next_key <= key or next_value < value:
                raise CorruptIndex(f"{self.path}: {next_key}, {next_value} does not follow {key}, {value}")
            key, value = next_key, next_value
        file.is_checked = True

    def read_all(self) -> list[Entry]:
        """All entries; for checks and tools, because an index may have hundreds of thousands."""
        file = self._open()
        data = file.file.pread(self._file_entries() * self._entry.size, 0) + bytes(self._tail)
        return list(self._entry.iter_unpack(data))

    def write_out(self) -> None:
        """Write the unwritten entries to the file."""
        tail = self._tail
        if not tail:
            return
        file = self.files.open(self.path, create=True)
        written = self._file_entries()
        file.file.pwrite(tail, written * self._entry.size)
        self._written = file.entries = written + len(tail) // self._entry.size
        self._tail = bytearray()

    def sync(self) -> None:
        sync(self.files.open(self.path).file)

    def truncate(self, entries: int) -> None:
        """Keep the first `entries` entries; also removes space that Kafka preallocated after them."""
        written = self._file_entries()
        size = self._entry.size
        if entries >= written:
            del self._tail[(entries - written) * size :]
        else:
            self._tail = bytearray()
            written = entries
        file = self.files.open(self.path, create=True)
        file.block, file.is_checked = None, False
        file.file.truncate(written * size)
        self._written = file.entries = written

    def truncate_below(self, target: int, *, field: int = 0) -> None:
        """Keep the entries whose field is below `target`."""
        written, size = self._file_entries(), self._entry.size
        file = self.files.open(self.path, create=True)

        def value(number: int) -> int:
            if number < written:
                return self._read(file, number)[field]
            return int(self._entry.unpack_from(self._tail, (number - written) * size)[field])

        self.truncate(bisect_left(range(self.entries), target, key=value))

    def _read(self, file: OpenFile, number: int) -> Entry:
        size = self._entry.size
        data = file.file.pread(size, number * size)
        if len(data) != size:
            raise CorruptIndex(f"{self.path} ends before entry {number}")
        return self._entry.unpack(data)

    def _open(self) -> OpenFile:
        """The file for a look-up; it may have been deleted since its entries were counted."""
        try:
            return self.files.open(self.path)
        except FileNotFoundError as error:
            raise CorruptIndex(f"{self.path} does not exist any more") from error

    def _file_entries(self) -> int:
        """The number of entries in the file; counted at first use and after each reopening of the file."""
        if self._written >= 0:
            return self._written
        try:
            file = self.files.open(self.path)
        except FileNotFoundError:
            return 0
        if file.entries < 0:
            file.entries = self._count(file)
        return file.entries

    def _count(self, file: OpenFile) -> int:
        size = file.file.size()
        if size % self._entry.size:
            raise CorruptIndex(f"{self.path} has {size} bytes, which is not a multiple of {self._entry.size}")
        count = size // self._entry.size
        if count and not any(self._read(file, count - 1)):
            # Preallocated zeros: the entries ascend, so the used ones are those before the first zeros.
            count = bisect_left(range(count), True, key=lambda number: not any(self._read(file, number)))
        return count


class OffsetIndex(Index):
    """Entries of (relative offset, position)."""

    __slots__ = ()
    _entry = OFFSET_ENTRY


class TimeIndex(Index):
    """Entries of (timestamp, relative offset)."""

    __slots__ = ()
    _entry = TIME_ENTRY
