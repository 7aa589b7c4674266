"""The index of a segment's aborted transactions: `.txnindex`.

An entry has 34 bytes: the producer, the transaction's first and last offset (that of its marker), and the last stable
offset when it was aborted. It is in the segment of the marker, so an entry's transaction may begin in an earlier
segment. Committed transactions have no entries. A segment without aborted transactions has no file.

As with the other indexes, new entries stay in memory until a block of them, a flush, a roll or a close writes them, and
recovery makes them again from the log.

Source  TransactionIndex, AbortedTxn of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from kbroker.storage.files import FilePool, OpenFile
from kbroker.storage.index import BLOCK_ENTRIES, TRANSACTION_ENTRY, CorruptIndex, Index

LAST_OFFSET: Final = 3  # the field in which entries ascend
MAX_OFFSET: Final = (1 << 63) - 1
_FEW_ENTRIES: Final = 16
CACHED_ENTRIES: Final = 4096
"""The entries of a file are kept in memory up to this number, together with the open file: 136 KiB."""


class AbortedTransaction(NamedTuple):
    """An entry of a transaction index. Units: offsets count records; last_offset is that of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex(Index):
    """Entries of (version, producer id, first offset, last offset, last stable offset), by last offset.

    Note  written_until is the last offset of the last entry in the file, so that readers behind it need not open the
          file; unknown (a very large number) until this process has written to it or read its end
    """

    __slots__ = ("_written_until",)
    _entry = TRANSACTION_ENTRY

    def __init__(self, files: FilePool, path: str, *, written: int = -1) -> None:
        super().__init__(files, path, written=written)
        self._written_until = MAX_OFFSET if written else -1

    def add(self, one: AbortedTransaction) -> None:
        """Add a transaction; its last offset is larger than all others."""
        self._tail += self._entry.pack(0, *one)

    def write_out(self) -> None:
        """Write the unwritten entries to the file."""
        tail = self._tail
        if tail:
            # First: a reader in another thread that finds no unwritten entries must look into the file.
            self._written_until = self._entry.unpack_from(tail, len(tail) - self._entry.size)[LAST_OFFSET]
            super().write_out()

    @property
    def is_empty(self) -> bool:
        """Whether there are no entries; no I/O if the file does not exist or was created by this process."""
        return not self._tail and not self._file_entries()

    def may_block(self, offset: int) -> bool:
        """Whether `between` reads the disk for transactions that end at or after `offset`."""
        return self._written != 0 and offset <= self._written_until and self._in_memory() is None

    def between(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that may have records in [first_offset, end_offset), and whether later segments have none.

        May run in another thread while entries are added: it takes the unwritten ones first.
        Errors  CorruptIndex
        """
        tail = bytes(self._tail)
        found: dict[int, AbortedTransaction] = {}
        is_decided = False
        if self._written != 0 and first_offset <= self._written_until:
            is_decided = self._select_written(first_offset, end_offset, found)
        is_decided = is_decided or self._select(tail, first_offset, end_offset, found)
        return list(found.values()), is_decided

    def _select_written(self, first_offset: int, end_offset: int, found: dict[int, AbortedTransaction]) -> bool:
        written, size = self._file_entries(), self._entry.size
        data = self._in_memory()
        if data is not None or written <= CACHED_ENTRIES:
            data = self._read_whole(written) if data is None else data
            self._written_until = self._entry.unpack_from(data, len(data) - size)[LAST_OFFSET] if data else -1
            return self._select(data, first_offset, end_offset, found)
        file = self._open()
        at = bisect_left(range(written), first_offset, key=lambda number: self._last_offset(file, number))
        while at < written:
            data = file.file.pread(min(BLOCK_ENTRIES, written - at) * size, at * size)
            if not data or len(data) % size:
                raise CorruptIndex(f"{self.path} ends before entry {written}")
            if self._select(data, first_offset, end_offset, found):
                return True
            at += len(data) // size
        return False

    def _in_memory(self) -> bytes | None:
        """The entries of the file, if they are cached with the open file."""
        file = self.files.peek(self.path)
        if file is None or file.block is None:
            return None
        entries = self._written if self._written >= 0 else file.entries
        data = file.block[1]
        return data if len(data) == entries * self._entry.size else None

    def _read_whole(self, written: int) -> bytes:
        """Read the entries of the file, and keep them with the open file."""
        file = self._open()
        data = file.file.pread(written * self._entry.size, 0)
        if len(data) < written * self._entry.size:
            raise CorruptIndex(f"{self.path} ends before entry {written}")
        if data:
            file.block = (0, data)
        return data

    def _last_offset(self, file: OpenFile, number: int) -> int:
        fields: tuple[int, ...] = self._read(file, number)
        return fields[LAST_OFFSET]

    def _select(self, data: bytes, first_offset: int, end_offset: int, found: dict[int, AbortedTransaction]) -> bool:
        """Add the transactions in the range, by last offset; whether one shows that no later one is in it.

        Those that end before first_offset show nothing: the last stable offset was not past their markers.
        """
        size, unpack_from = self._entry.size, self._entry.unpack_from
        start = 0
        if len(data) > _FEW_ENTRIES * size:
            ends = range(len(data) // size)
            start = bisect_left(ends, first_offset, key=lambda number: unpack_from(data, number * size)[LAST_OFFSET])
        for version, producer_id, first, last, stable in self._entry.iter_unpack(memoryview(data)[start * size :]):
            if version:
                raise CorruptIndex(f"{self.path} has an entry of version {version}")
            if last >= first_offset and first < end_offset:
                found[last] = AbortedTransaction(producer_id, first, last, stable)
            if stable >= end_offset:
                return True
        return False

    def check(self, base_offset: int) -> None:
        """Raise CorruptIndex unless the entries are plausible and ascend. Reads the whole file."""
        written = self._file_entries()
        last_before = base_offset - 1
        if written:
            data = self._open().file.pread(written * self._entry.size, 0)
            if len(data) < written * self._entry.size:
                raise CorruptIndex(f"{self.path} ends before entry {written}")
            for version, _, first, last, _ in self._entry.iter_unpack(data):
                if version or not first <= last or last <= last_before:
                    raise CorruptIndex(f"{self.path}: an entry that ends at {last} follows {last_before}")
                last_before = last
            self._written_until = last_before
