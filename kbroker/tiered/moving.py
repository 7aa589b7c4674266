"""Moving the bytes of files, with size and checksum, so that whoever produces meanwhile hardly notices.

On a real disk all of it is done by another process (see `kbroker.runtime.worker`): what is here are its functions,
which need nothing but paths. They do not make files, lest one who comes too late leave something behind, and of the
names that they give they take back what they can.

Measured beside a producer of single records, in one process: each call of the system that another thread makes costs
the event loop a chance to wait for the interpreter, so pieces are not small, and files get their names here too. New
memory for each piece costs page faults and unmappings, which the kernel does in the way of the other threads, so on the
real disk a buffer is used again. What is written is sent on its way to the disk piece by piece, so that no flood of
dirty pages stands before an append, but it is synced seldom: where the file system has a journal each sync commits it,
for which appends wait too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from kbroker.runtime.disk import RealFile
from kbroker.runtime.ports import Buffer, Disk, File

PIECE_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 16 << 20

Sum = tuple[int, int]
"""What a file holds: its size in bytes and its CRC-32C."""


def move_files(disk: Disk, sources: Mapping[str, str | bytes]) -> dict[str, Sum]:
    """Write a file's contents, or some bytes, to each of these paths, where there are files; what was read.

    Nothing is durable by that. After somebody died in the middle of it, it can be done again. Errors: OSError
    """
    buffer = memoryview(bytearray(PIECE_BYTES if any(isinstance(one, str) for one in sources.values()) else 0))
    sent: dict[str, Sum] = {}
    for path, source in sources.items():
        target = disk.open(path)
        try:
            target.truncate(0)
            if isinstance(source, bytes):
                sent[path] = _write([source], target)
                continue
            file = disk.open(source, writable=False)
            try:
                sent[path] = _write(_pieces(file, buffer), target)
            finally:
                file.close()
        finally:
            target.close()
    return sent


class Publication(NamedTuple):
    """Files that were written under one name each and are to have another one.

    Shape  `moved` says what was written to each path; `names` are path and final name of each, in order; the last one
           vouches for the others: it gets its name when theirs are durable; `replaced` goes before any of that; all lie
           in `directory`
    """

    directory: str
    moved: Mapping[str, Sum]
    names: tuple[tuple[str, str], ...]
    replaced: tuple[str, ...]


def publish_files(disk: Disk, publication: Publication) -> None:
    """Make files durable, read them back, and give them their names. Not to be done twice.

    Errors  OSError: EIO when a file does not hold what was written to it. What vouches for the others has not its
            name then, unless it cannot be removed; others may have theirs, or be there from before
    """
    for path, found in _settled(disk, publication.moved).items():
        if found != (sent := publication.moved[path]):
            raise OSError(errno.EIO, f"{path} is not what was written: {found}, sent were {sent}")
    directory, names = publication.directory, publication.names
    published: list[str] = []
    try:
        # Others may be there under these names, and what vouches for them must not be taken for this one's.
        if unlink_files(disk, publication.replaced):
            disk.sync_directory(directory)
        for pairs in (names[:-1], names[-1:]):
            for path, name in pairs:
                disk.rename(path, name)
                published.append(name)
            disk.sync_directory(directory)
    except OSError:
        # As in a deletion: the others go when what vouches for them has gone for good, or stay until there is one.
        with suppress(OSError):
            if len(published) == len(names):
                disk.unlink(published.pop())
                disk.sync_directory(directory)
            unlink_files(disk, published)
        raise


def unlink_files(disk: Disk, paths: Iterable[str]) -> int:
    """Remove what is there of these; how many were. Errors: OSError."""
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            disk.unlink(path)
            count += 1
    return count


def _settled(disk: Disk, paths: Iterable[str]) -> dict[str, Sum]:
    """Make the contents of files durable and read them back; what is in each. Errors: OSError."""
    files: dict[str, File] = {}
    try:
        for path in paths:
            files[path] = disk.open(path)
        # All are on their way by now, so the first of these syncs does most of what the others are for.
        for file in files.values():
            file.sync()
        buffer = memoryview(bytearray(PIECE_BYTES))
        return {path: _sum(_pieces(file, buffer)) for path, file in files.items()}
    finally:
        for file in files.values():
            file.close()


def _write(pieces: Iterable[Buffer], target: File) -> Sum:
    """Write pieces to a file that is empty. The end is not synced."""
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
    return position, checksum


def _pieces(file: File, buffer: memoryview) -> Iterator[Buffer]:
    """All of a file in pieces, each of which is done with before the next is asked for."""
    position = 0
    if not isinstance(file, RealFile):
        while piece := file.pread(PIECE_BYTES, position):
            yield piece
            position += len(piece)
        return
    while size := file.pread_into(buffer, position):
        yield buffer[:size]
        if size < len(buffer):
            return
        position += size


def _sum(pieces: Iterable[Buffer]) -> Sum:
    size = checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
        size += len(piece)
    return size, checksum
