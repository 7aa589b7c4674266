"""What kbroker needs of the world, as Protocols.

A module that decides takes plain values; a module that does blocking I/O takes a `Disk`; an async shell takes an
environment whose parts satisfy these Protocols. The real ones are `kbroker.runtime.disk` and `kbroker.runtime.env`; the
simulated ones are in `kbroker.testing`. Everything that a disk can do wrong is an `OSError`, as the kernel would raise
it.
"""

from __future__ import annotations

import builtins
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks with two names, so that one is never taken for the other."""

    def now_ms(self) -> int:
        """Milliseconds of monotonic time: deadlines, sessions, delays."""
        ...

    def timestamp_ms(self) -> int:
        """Milliseconds of wall time since the epoch: timestamps of records, retention."""
        ...


class File(Protocol):
    """An open file, read and written at explicit positions, so that several readers need no shared cursor.

    Promise  it stays open while anybody holds it, and closes itself with its last reference; `close` is for who cannot
             wait
    Units    sizes and positions are bytes
    Errors   OSError
    """

    @property
    def path(self) -> str:
        """The path by which it was opened; a later rename does not change it."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """`size` bytes at `position`; fewer only where the file ends."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """All of `data` at `position`, or OSError (then any part of it may have been written)."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make contents and size durable. After an error nobody knows what is on the disk: never try again."""
        ...

    def size(self) -> int: ...

    def fileno(self) -> int:
        """The descriptor, for sendfile; OSError where there is none."""
        ...

    def close(self) -> None:
        """Release the descriptor; harmless when repeated."""
        ...


class Disk(Protocol):
    """The file system, blocking.

    Promise  a completed `pwrite` survives the death of the process; only `sync` makes it survive the loss of power. A
             created, renamed or unlinked name survives the loss of power only after `sync_directory` of its directory.
    Errors   OSError, of the subclass that the kernel's errno has (FileNotFoundError, FileExistsError, ...)
    """

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; `create` makes a missing one (empty), and leaves an existing one as it is."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> builtins.list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Make one directory; FileExistsError if there is something of that name."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file called `new`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name; who has the file open can read on."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """What an unprivileged process may still write to the file system that holds `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system that holds `path`."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Take `size` bytes of disk space for a file that is at least so long afterwards, made if it is missing.

        OSError where there is no room; the file may then have grown, and part of the space may be taken.
        """
        ...

    def device(self, path: str) -> int:
        """A number that tells file systems apart: two paths on the same one share its space."""
        ...

    def modified_ms(self, path: str) -> int:
        """Time of the last modification, milliseconds of wall time."""
        ...

    def lock(self, path: str) -> File:
        """Create the file and lock it until it is closed or the process ends; BlockingIOError when another one holds
        it.
        """
        ...
