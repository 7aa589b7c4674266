"""A bounded cache of open files.

A broker has three files for each segment, and may hold tens of thousands of segments; descriptors are few. So nothing
above keeps files open: it asks the pool by path at each use, which costs one dict look-up for a file in the cache. The
pool holds at most `limit` files and lets go of those not used lately (second chance: a file used since the hand last
passed is passed over once).

To let go is not to close: a `File` closes itself with its last reference. A reader that still holds one, for instance a
reply that waits to be sent from it, keeps it open, as an unlinked file stays open in POSIX; the descriptor is closed
with the last reference. So a segment can be deleted or its file evicted under a slow consumer, and a cancelled task
cannot leak a descriptor.

Safe to call from several threads without a lock: each step is one operation of a dict or deque, and every interleaving
leaves at worst a file opened twice or a cache one file over its limit for a moment.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Final

from kbroker.runtime.ports import Disk, File

DEFAULT_LIMIT: Final = 4096
RING_SLACK: Final = 64


class OpenFile:
    """A file shared by all who read or write one path.

    entries, block and is_checked belong to `kbroker.storage.index`: the number of entries of an index file (-1: not
    counted yet) and its last used block as (number of its first entry, bytes), and whether it was read through and
    found in order. They live here so that evicting the file frees them.
    """

    __slots__ = ("block", "entries", "file", "is_checked", "is_used")

    def __init__(self, file: File) -> None:
        self.file = file
        self.is_used = False
        self.entries = -1
        self.is_checked = False
        self.block: tuple[int, bytes] | None = None


class FilePool:
    """Open files by path, at most about `limit` of them; see the module's text."""

    __slots__ = ("_files", "_limit", "_ring", "disk")

    def __init__(self, disk: Disk, limit: int = DEFAULT_LIMIT) -> None:
        self.disk = disk
        self._limit = max(limit, 1)
        self._files: dict[str, OpenFile] = {}
        self._ring: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._files)

    def __reduce__(self) -> tuple[type[FilePool], tuple[Disk, int]]:
        return FilePool, (self.disk, self._limit)  # in another process no file of this one is open

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        """The file of that path, opened if it is not open yet; `create` makes a missing one."""
        found = self._files.get(path)
        if found is not None:
            found.is_used = True
            return found
        opened = self._files.setdefault(path, self._open(path, create=create))
        self._ring.append(path)
        if len(self._files) > self._limit:
            self._evict(self._limit)
        elif len(self._ring) > 2 * len(self._files) + RING_SLACK:
            # Forgotten files leave their names behind.
            self._ring = deque(tuple(self._files))
        return opened

    def create(self, path: str) -> OpenFile:
        """The file that the path names now, made if there is none; it takes the place of what was held under the path.

        A thread that read a deleted log may have brought its file back under the name that is now another log's.
        """
        self.forget(path)
        opened = self._files[path] = self._open(path, create=True)
        self._ring.append(path)
        if len(self._files) > self._limit:
            self._evict(self._limit)
        return opened

    def forget(self, path: str) -> None:
        """Let go of a file whose path is about to be renamed or unlinked; those who hold it can use it on."""
        self._files.pop(path, None)

    def forget_directory(self, directory: str) -> None:
        """The same for all files below a directory."""
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
            # Out of descriptors: sockets have taken their share. Files can be opened again, connections cannot.
            self._evict(len(self._files) // 2)
            return OpenFile(self.disk.open(path, create=create))

    def _evict(self, goal: int) -> None:
        """Let go of files until at most `goal` are held."""
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


class FileRange:
    """A piece of a file that is to be sent or read: `size` bytes from `position`.

    It is an Opaque of the wire, so it can stand where records stand in a Fetch response. It stays readable while it
    lives, whatever becomes of the segment's name.
    """

    __slots__ = ("_open_file", "position", "size")

    def __init__(self, open_file: OpenFile, position: int, size: int) -> None:
        self._open_file = open_file
        self.position = position
        self.size = size

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
