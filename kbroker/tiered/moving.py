"""Moves the bytes of files, with size and checksum, with little effect on concurrent produce requests.

If other processes can access the disk, a worker process does all of this (see `kbroker.runtime.worker`). Its functions
are here; they need only paths. They do not create files, so that a late worker leaves nothing behind, and they undo
renames as far as possible.

Measured with a producer of single records in the same process: each system call of another thread may make the event
loop wait for the interpreter. So pieces are large, and files are also renamed here. New memory for each piece costs
page faults and unmappings, which delay the other threads, so a buffer is reused. Write-back of each
piece starts at once, so that no flood of dirty pages delays an append. Syncs are rare: on a journaling file system each
one commits the journal, which delays appends too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kbroker.runtime.ports import Buffer, Disk, File
from wire.crc32c import crc32c

PIECE_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 16 << 20

Sum = tuple[int, int]
"""The content of a file: its size in bytes and its CRC-32C."""


def move_files(disk: Disk, sources: Mapping[str, str | bytes]) -> dict[str, Sum]:
    """Write a file's content, or some bytes, to each of these paths, which must exist. Returns size and checksum of
    each.

    Nothing is durable afterwards. Repeatable after a worker died in between. Errors: OSError
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


def publish_files(
    disk: Disk, directory: str, moved: Mapping[str, Sum], names: Sequence[tuple[str, str]], replaced: Sequence[str]
) -> None:
    """Make files durable, read them back, and rename them; all are in `directory`. Not repeatable.

    Shape   `moved` has size and checksum of each path; `names` are pairs of path and final name, in order; the last
            file validates the others and is renamed after their names are durable; `replaced` is removed before the
            renames
    Errors  OSError: EIO if the content of a file is wrong. After an error the validating file is not renamed, unless
            it cannot be removed; others may be renamed, or exist from before
    """
    for path, found in _settled(disk, moved).items():
        if found != (sent := moved[path]):
            raise OSError(errno.EIO, f"{path} does not hold what was written: {found}, expected {sent}")
    published: list[str] = []
    try:
        # Files of an earlier copy may have these names; its manifest must not validate the new files.
        if unlink_files(disk, replaced):
            disk.sync_directory(directory)
        for pairs in (names[:-1], names[-1:]):
            for path, name in pairs:
                disk.rename(path, name)
                published.append(name)
            disk.sync_directory(directory)
    except OSError:
        # As in a deletion: the others are removed only after the removal of the validating file is durable.
        with suppress(OSError):
            if len(published) == len(names):
                disk.unlink(published.pop())
                disk.sync_directory(directory)
            unlink_files(disk, published)
        raise


def unlink_files(disk: Disk, paths: Iterable[str]) -> int:
    """Remove the existing ones of these files and return their number. Errors: OSError."""
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            disk.unlink(path)
            count += 1
    return count


def _settled(disk: Disk, paths: Iterable[str]) -> dict[str, Sum]:
    """Make the content of files durable and read it back; returns size and checksum of each. Errors: OSError."""
    files: dict[str, File] = {}
    try:
        for path in paths:
            files[path] = disk.open(path)
        # Write-back of all files has started, so the first sync does most of the work.
        for file in files.values():
            file.sync()
        buffer = memoryview(bytearray(PIECE_BYTES))
        return {path: _sum(_pieces(file, buffer)) for path, file in files.items()}
    finally:
        for file in files.values():
            file.close()


def _write(pieces: Iterable[Buffer], target: File) -> Sum:
    """Write pieces to an empty file. The end is not synced."""
    position = synced = checksum = 0
    for piece in pieces:
        if position - synced >= SYNC_BYTES:
            target.sync()
            synced = position
        target.pwrite(piece, position)
        target.begin_write_back(position, len(piece))
        checksum = crc32c(piece, checksum)
        position += len(piece)
    return position, checksum


def _pieces(file: File, buffer: memoryview) -> Iterator[Buffer]:
    """The content of a file in pieces; each piece is valid until the next one is requested."""
    position = 0
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
