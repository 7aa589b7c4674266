"""Protocols for clocks, files and disks.

A decision module takes plain values; a module with blocking I/O takes a `Disk`; an async shell takes an environment
whose parts satisfy these Protocols. The real implementations are in `kbroker.runtime.disk` and `kbroker.runtime.env`,
the simulated ones in `kbroker.testing`. Every disk error is an `OSError`, as the kernel would raise it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, TypeVar, TypeVarTuple

Buffer: TypeAlias = bytes | bytearray | memoryview
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Clock(Protocol):
    """The monotonic clock and the wall clock, with different names so that they are not confused.

    Units  ahead_ms is how far the wall clock is ahead of the active controller's, as far as this node knows; 0 if they
           nearly agree
    """

    ahead_ms: int

    def now_ms(self) -> int:
        """Milliseconds of monotonic time: deadlines, sessions, delays."""
        ...

    def timestamp_ms(self) -> int:
        """Milliseconds of wall time since the epoch: timestamps of records, retention."""
        ...


class Runner(Protocol):
    """Calls a function and waits for its result, perhaps in another process (`kbroker.runtime.worker`)."""

    def __call__(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments, may_repeat: bool = True
    ) -> Result:
        """Blocking. Errors: those of the function; without `may_repeat` also EAGAIN: its effects are then unknown."""
        ...


def run_here(
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    may_repeat: bool = True,  # noqa: ARG001  (a Runner has it)
) -> Result:
    """A Runner that calls the function in this thread."""
    return function(*arguments)


class ReadableFile(Protocol):
    """An open file, read at explicit positions, so that several readers need no shared cursor.

    Promise  it stays open while a reference to it exists, and closes with the last reference; `close` closes it at once
    Units    sizes and positions are bytes
    Errors   OSError
    """

    @property
    def path(self) -> str:
        """The path with which it was opened; a later rename does not change it."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """`size` bytes at `position`; fewer only at the end of the file."""
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Release the descriptor. Idempotent."""
        ...


class File(ReadableFile, Protocol):
    """An open file that can be read and written."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer up to the end of the file; return the number of bytes. For large reads: allocates nothing."""
        ...

    def begin_write_back(self, position: int, size: int) -> None:
        """Make the kernel start writing dirty pages to the disk. This makes nothing durable, but the following sync
        waits less, and shares its journal commit with the syncs of other files.
        """
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. After an OSError any part of it may have been written."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make contents and size durable. After an error the state of the disk is unknown: never retry."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile; OSError if the file has none."""
        ...


class ReadableDisk(Protocol):
    """Files that their user only reads, blocking. Errors: as for `Disk`."""

    def open(self, path: str, *, writable: Literal[False]) -> ReadableFile: ...


class Disk(ReadableDisk, Protocol):
    """The file system, blocking.

    Promise  a completed `pwrite` survives a crash of the process; it survives a power failure only after `sync`. A
             created, renamed or unlinked name survives a power failure only after `sync_directory` of its directory.
    Errors   OSError, in the subclass for the kernel's errno (FileNotFoundError, FileExistsError, ...)
    """

    @property
    def is_shared(self) -> bool:
        """Whether another process that opens the same path gets the same file."""
        ...

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; `create` creates a missing file empty, and does not change an existing one."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> builtins.list[str]:
        """The names in a directory, sorted."""
        ...

    def modified_ms(self, path: str) -> int:
        """Time of the last modification, in milliseconds of wall time."""
        ...

    def make_directory(self, path: str) -> None:
        """Create one directory; FileExistsError if the name exists."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file called `new`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name; open files stay readable."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """The bytes that an unprivileged process can still write to the file system of `path`."""
        ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system of `path`."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Allocate disk space for the first `size` bytes of a file, and extend or create the file if needed.

        OSError if there is not enough space; part of it may be allocated then, and the file may have grown.
        """
        ...

    def device(self, path: str) -> int:
        """A number that identifies the file system of `path`; paths with the same number share its space."""
        ...

    def lock(self, path: str) -> File:
        """Create a file and lock it until it is closed or the process ends; BlockingIOError if it is already locked."""
        ...
