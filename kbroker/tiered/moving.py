"""Moving the bytes of files, with size and checksum, so that whoever produces meanwhile hardly notices.

Measured beside a producer of single records: each call of the system that another thread makes costs the event loop a
chance to wait for the interpreter, so pieces are not small. New memory for each piece costs page faults and unmappings,
which the kernel does in the way of the other threads, so on the real disk a buffer is used again. What is written is
sent on its way to the disk piece by piece, so that no flood of dirty pages stands before an append, but it is synced
seldom: each sync is a commit of the file system's journal, for which appends wait too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from crc32c import crc32c

from kbroker.runtime.disk import RealFile
from kbroker.runtime.ports import Buffer, Disk, File
from kbroker.tiered.layout import StoredFile

PIECE_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 16 << 20


class Mover:
    """Reads and writes whole files in pieces. Used by several threads at once; holds as many buffers as those were."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._buffers: list[bytearray] = []

    def move(self, path: str, target: File) -> StoredFile:
        """Write all of a file to `target`, which is empty; what was read. The end is not synced."""
        source = self._disk.open(path, writable=False)
        try:
            with self._pieces(source) as pieces:
                return self.write(pieces, target)
        finally:
            source.close()

    def write(self, pieces: Iterable[Buffer], target: File) -> StoredFile:
        """Write pieces to `target`, which is empty. The end is not synced."""
        position = synced = checksum = 0
        for piece in pieces:
            if position - synced >= SYNC_BYTES:
                target.sync()
                synced = position
            target.pwrite(piece, position)
            if isinstance(target, RealFile):
                target.begin_write_back(position, len(piece))
            checksum = crc32c(piece, checksum)
            position += len(piece)
        return StoredFile(position, checksum)

    def sum(self, file: File) -> StoredFile:
        """What is in a file."""
        with self._pieces(file) as pieces:
            return _summed(pieces)

    @contextmanager
    def _pieces(self, file: File) -> Iterator[Iterator[Buffer]]:
        """All of a file in pieces, each of which is done with before the next is asked for."""
        if not isinstance(file, RealFile):
            yield _allocated_pieces(file)
            return
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = bytearray(PIECE_BYTES)
        try:
            yield _buffered_pieces(file, buffer)
        finally:
            self._buffers.append(buffer)


def _allocated_pieces(file: File) -> Iterator[Buffer]:
    position = 0
    while piece := file.pread(PIECE_BYTES, position):
        yield piece
        position += len(piece)


def _buffered_pieces(file: RealFile, buffer: bytearray) -> Iterator[Buffer]:
    view, position = memoryview(buffer), 0
    while size := file.pread_into(view, position):
        yield view[:size]
        if size < len(view):
            return
        position += size


def _summed(pieces: Iterable[Buffer]) -> StoredFile:
    size = checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
        size += len(piece)
    return StoredFile(size, checksum)
