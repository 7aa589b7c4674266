"""A bounded cache of open files.

A broker may hold tens of thousands of segments with three files each, more than it has file descriptors. So other
modules do not keep files open. They ask the pool by path at each use, which costs one dict look-up if the file is
cached. The pool holds about `limit` files and evicts with the second-chance algorithm: a file that was used since the
last pass is skipped once.

Eviction does not close a file: a `File` closes itself when its last reference is dropped. A reader that still holds
one, for instance a reply that is waiting to be sent, keeps it open, just as POSIX keeps an unlinked file open. So the
broker can delete a segment or evict its file while a slow consumer reads it, and a cancelled task cannot leak a
descriptor.

The pool is thread-safe without a lock: each step is one operation of a dict or deque. The worst interleaving opens a
file twice or exceeds the limit by one file for a moment.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from typing import Final

from kbroker.runtime.ports import Disk, File

DEFAULT_LIMIT: Final = 4096
RING_SLACK: Final = 64


@dataclass(slots=True, eq=False)
class OpenFile:
    """A file shared by all readers and writers of one path.

    entries, block and is_checked belong to `kbroker.storage.index`: the number of entries of an index file (-1: not
    counted yet), its last used block as (number of its first entry, bytes), and whether the entries were checked. They
    are stored here so that evicting the file frees them.
    """

    file: File
    is_used: bool = False
    entries: int = -1
    is_checked: bool = False
    block: tuple[int, bytes] | None = None


class FilePool:
    """Open files by path, about `limit` of them at most; see the module docstring."""

    __slots__ = ("_files", "_limit", "_ring", "disk")

    def __init__(self, disk: Disk, limit: int = DEFAULT_LIMIT) -> None:
        self.disk = disk
        self._limit = max(limit, 1)
        self._files: dict[str, OpenFile] = {}
        self._ring: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._files)

    def __reduce__(self) -> tuple[type[FilePool], tuple[Disk, int]]:
        return FilePool, (self.disk, self._limit)  # open files are not sent to another process

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        """The open file of that path; `create` creates it if it does not exist."""
        found = self._files.get(path)
        if found is not None:
            found.is_used = True
            return found
        opened = self._files.setdefault(path, self._open(path, create=create))
        self._ring.append(path)
        if len(self._files) > self._limit:
            self._evict(self._limit)
        elif len(self._ring) > 2 * len(self._files) + RING_SLACK:
            # Forgotten files leave their names in the ring.
            self._ring = deque(tuple(self._files))
        return opened

    def peek(self, path: str) -> OpenFile | None:
        """The file of that path if it is open."""
        return self._files.get(path)

    def create(self, path: str) -> OpenFile:
        """Open or create the file at `path` now, and replace a cached file of that path.

        A thread that read a deleted log may have cached its file under a path that now belongs to another log.
        """
        self.forget(path)
        opened = self._files[path] = self._open(path, create=True)
        self._ring.append(path)
        if len(self._files) > self._limit:
            self._evict(self._limit)
        return opened

    def forget(self, path: str) -> None:
        """Drop a file whose path is about to be renamed or unlinked; current holders can continue to use it."""
        self._files.pop(path, None)

    def forget_directory(self, directory: str) -> None:
        """Drop all files below a directory."""
        prefix = directory + "/"
        for path in [path for path in tuple(self._files) if path.startswith(prefix)]:
            self._files.pop(path, None)

    def close(self) -> None:
        self._files.clear()
        self._ring.clear()

    def _open(self, path: str, *, create: bool) -> OpenFile:
        try:
            return OpenFile(self.disk.open(path, create=create))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # The sockets have used up the descriptors. Files can be reopened, connections cannot.
            self._evict(len(self._files) // 2)
            return OpenFile(self.disk.open(path, create=create))

    def _evict(self, goal: int) -> None:
        """Drop files until at most `goal` are held."""
        for _ in range(2 * len(self._ring)):
            if len(self._files) <= goal:
                return
            try:
                path = self._ring.popleft()
            except IndexError:
                return
            file = self._files.get(path)
            if file is None:
                continue
            if file.is_used:
                file.is_used = False
                self._ring.append(path)
            else:
                self._files.pop(path, None)


@dataclass(slots=True, eq=False, repr=False)
class FileRange:
    """A piece of a file to send or read: `size` bytes from `position`.

    It is an Opaque of the wire, so it can stand for records in a Fetch response. It stays readable as long as it
    exists, even after the segment is renamed or deleted.
    """

    _open_file: OpenFile
    position: int
    size: int

    @property
    def file(self) -> File:
        return self._open_file.file

    def fileno(self) -> int:
        """The descriptor for sendfile."""
        return self._open_file.file.fileno()

    def read(self) -> bytes:
        return self._open_file.file.pread(self.size, self.position)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileRange({self._open_file.file.path!r}, position={self.position}, size={self.size})"
