"""The sparse indexes of a segment.

`.index` has an entry of 8 bytes (relative offset, position) for a batch every index.interval.bytes: the offset is the
batch's last, the position is its start. `.timeindex` has entries of 12 bytes (timestamp, relative offset): the largest
timestamp so far and the last offset of the batch that holds it, written beside the other when it has grown, and once
more when the segment closes. Both ascend, so both are searched by bisection. Offsets are relative to the segment's
base_offset; this module sees relative ones only.

Nothing of an index stays in memory but what costs nothing: a search reads one entry for each halving and then one block
of 512 entries, which is kept with the open file, since the next read usually falls into it. New entries gather in
memory and reach the file a block at a time, on a flush, a roll or a close; after a crash the index is rebuilt from the
log anyway.

Kafka allocates the indexes of its active segment in full, so entries of zeros at the end of a file are not entries.

Source  OffsetIndex and TimeIndex of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from kbroker.storage.durable import sync
from kbroker.storage.files import FilePool, OpenFile

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
BLOCK_ENTRIES: Final = 512

Entry = tuple[int, int]


class CorruptIndex(Exception):
    """The index does not describe its segment, and has to be rebuilt from it."""


class Index:
    """One index file, with the entries that are not written to it yet.

    Shape       file entries, then `_tail`; all ascending in the field that is searched by
    Units       entries count entries, positions are bytes
    Concurrent  one writer; `floor` may run in another thread meanwhile: writing out first counts the entries of the
                file up, then drops the tail, so that each order of the two reads finds every entry
    """

    __slots__ = ("_entry", "_files", "_path", "_tail", "_written")

    def __init__(self, files: FilePool, path: str, entry: Struct, *, written: int = -1) -> None:
        self._files = files
        self._path = path
        self._entry = entry
        self._written = written
        self._tail = bytearray()

    def __reduce__(self) -> tuple[Callable[..., Index], tuple[FilePool, str, str, int, bytes]]:
        return _restored, (self._files, self._path, self._entry.format, self._written, self.gathered())

    @property
    def path(self) -> str:
        return self._path

    def use(self, files: FilePool) -> None:
        """Open files by another pool from now on."""
        self._files = files

    @property
    def entries(self) -> int:
        return self._file_entries() + len(self._tail) // self._entry.size

    @property
    def unwritten_entries(self) -> int:
        return len(self._tail) // self._entry.size

    def gathered(self) -> bytes:
        """The entries that are not written to the file yet, as they will be there."""
        return bytes(self._tail)

    def gather(self, entries: bytes) -> None:
        """Take entries as `gathered` gives them."""
        self._tail += entries

    def append(self, key: int, value: int) -> None:
        self._tail += self._entry.pack(key, value)

    def last(self) -> Entry | None:
        if self._tail:
            key, value = self._entry.unpack_from(self._tail, len(self._tail) - self._entry.size)
            return key, value
        written = self._file_entries()
        return self._read(self._open(), written - 1) if written else None

    def first(self) -> Entry | None:
        if self._file_entries():
            return self._read(self._open(), 0)
        return self._entry.unpack_from(self._tail, 0) if self._tail else None

    @property
    def is_checked(self) -> bool:
        """Whether somebody compared the file with the log since it was opened; true of one that has no entries."""
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
            raise CorruptIndex(f"{self._path} ends before entry {written}")
        file.block = (start, data)
        return self._floor_in(data, field, target)

    def _floor_in(self, data: bytes | bytearray, field: int, target: int) -> Entry | None:
        unpack, size = self._entry.unpack_from, self._entry.size
        low, high = 0, len(data) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[field] <= target:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        key, value = unpack(data, (low - 1) * size)
        return key, value

    def check_order(self) -> None:
        """Look through the file once, and raise CorruptIndex unless both fields ascend.

        For the time index, whose entries a look-up cannot check against the log: a wrong one would hide records.
        """
        written = self._file_entries()
        if not written:
            return
        file = self._open()
        if file.is_checked:
            return
        data = file.file.pread(written * self._entry.size, 0)
        if len(data) < written * self._entry.size:
            raise CorruptIndex(f"{self._path} ends before entry {written}")
        key, value = -1, -1
        for next_key, next_value in self._entry.iter_unpack(data):
            if next_key <= key or next_value < value:
                raise CorruptIndex(f"{self._path}: {next_key}, {next_value} does not follow {key}, {value}")
            key, value = next_key, next_value
        file.is_checked = True

    def read_all(self) -> list[Entry]:
        """Every entry; for checks and tools, since an index may have hundreds of thousands."""
        file = self._open()
        data = file.file.pread(self._file_entries() * self._entry.size, 0) + bytes(self._tail)
        return list(self._entry.iter_unpack(data))

    def write_out(self) -> None:
        """Write the gathered entries to the file."""
        tail = self._tail
        if not tail:
            return
        file = self._files.open(self._path, create=True)
        written = self._file_entries()
        file.file.pwrite(tail, written * self._entry.size)
        self._written = file.entries = written + len(tail) // self._entry.size
        self._tail = bytearray()

    def sync(self) -> None:
        sync(self._files.open(self._path).file)

    def truncate(self, entries: int) -> None:
        """Keep the first `entries` entries; also cuts what Kafka allocated behind them."""
        written = self._file_entries()
        size = self._entry.size
        if entries >= written:
            del self._tail[(entries - written) * size :]
        else:
            self._tail = bytearray()
            written = entries
        file = self._files.open(self._path, create=True)
        file.block, file.is_checked = None, False
        file.file.truncate(written * size)
        self._written = file.entries = written

    def truncate_below(self, target: int, *, field: int = 0) -> None:
        """Keep the entries whose field is below `target`."""
        self.truncate(self._count_below(target, field))

    def _count_below(self, target: int, field: int) -> int:
        written = self._file_entries()
        size = self._entry.size
        low, high = 0, written + len(self._tail) // size
        file = self._files.open(self._path, create=True)
        while low < high:
            middle = (low + high) // 2
            entry = (
                self._read(file, middle)
                if middle < written
                else self._entry.unpack_from(self._tail, (middle - written) * size)
            )
            if entry[field] < target:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, file: OpenFile, number: int) -> Entry:
        size = self._entry.size
        data = file.file.pread(size, number * size)
        if len(data) != size:
            raise CorruptIndex(f"{self._path} ends before entry {number}")
        key, value = self._entry.unpack(data)
        return key, value

    def _open(self) -> OpenFile:
        """The file for a look-up; somebody may have deleted it since its entries were counted."""
        try:
            return self._files.open(self._path)
        except FileNotFoundError as error:
            raise CorruptIndex(f"{self._path} is gone") from error

    def _file_entries(self) -> int:
        """How many entries the file holds; counted at first use, and again if the file was closed meanwhile."""
        if self._written >= 0:
            return self._written
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return 0
        if file.entries < 0:
            file.entries = self._count(file)
        return file.entries

    def _count(self, file: OpenFile) -> int:
        size = file.file.size()
        if size % self._entry.size:
            raise CorruptIndex(f"{self._path} has {size} bytes, no multiple of {self._entry.size}")
        count = size // self._entry.size
        if count and not any(self._read(file, count - 1)):
            # Allocated but not used: the entries ascend, so the used ones are those before the first zeros.
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if any(self._read(file, middle)):
                    low = middle + 1
                else:
                    high = middle
            count = low
        return count


def _restored(files: FilePool, path: str, entry_format: str, written: int, tail: bytes) -> Index:
    """An index that came from another process: a Struct does not travel."""
    index = Index(files, path, Struct(entry_format), written=written)
    index.gather(tail)
    return index
