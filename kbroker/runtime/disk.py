"""The real disk: `Disk` and `File` of `kbroker.runtime.ports` over system calls.

It uses `os.pread` and `os.pwrite`, which need no shared cursor and release the interpreter lock, so several threads can
read a file at the same time.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from kbroker.runtime.ports import Buffer


class RealFile:
    """An open file descriptor; see `kbroker.runtime.ports.File`."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        # One call returns at most 2 GiB, and less if a signal interrupts it: continue until the end of the file.
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(self._descriptor, size - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer) and (count := os.preadv(self._descriptor, [buffer[done:]], position + done)):
            done += count
        return done

    def begin_write_back(self, position: int, size: int) -> None:
        # For dirty pages this call does not drop them: it only starts writing them.
        os.posix_fadvise(self._descriptor, position, size, os.POSIX_FADV_DONTNEED)

    def pwrite(self, data: Buffer, position: int) -> None:
        size = len(data)
        done = os.pwrite(self._descriptor, data, position)
        if done == size:
            return
        # A short write usually means a full disk or a quota: the next call then raises the error.
        rest = memoryview(data)
        while done < size:
            done += os.pwrite(self._descriptor, rest[done:], position + done)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The file system of this machine; see `kbroker.runtime.ports.Disk`. Files are 0600 and directories 0700."""

    is_shared = True
    file_class: ClassVar[type[RealFile]] = RealFile

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return self.file_class(path, os.open(path, flags, 0o600))

    def exists(self, path: str) -> bool:
        # os.path.exists returns False for every error, also if the directory cannot be searched.
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> builtins.list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def allocate(self, path: str, size: int) -> None:
        file = self.open(path, create=True)
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        finally:
            file.close()

    def device(self, path: str) -> int:
        return os.stat(path).st_dev

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> RealFile:
        descriptor = os.open(path, os.O_CLOEXEC | os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # flock also excludes a second broker inside this process; lockf excludes Apache Kafka, which uses it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise BlockingIOError(error.errno, "another process holds the lock", path) from error
        return RealFile(path, descriptor)


def keep_memory_and_files_private() -> None:
    """Write no core file, which would hold records and secrets, and let only this user read new files.

    Processes that this one starts inherit both. Root can allow core files of a running broker: `prlimit --core`. The
    limit is 1 byte where it can be: Linux ignores a limit of 0 if core_pattern is a program (apport, systemd-coredump),
    but starts no program with a limit of 1 (do_coredump in fs/coredump.c).
    """
    os.umask(0o077)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    bytes_at_most = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (bytes_at_most, bytes_at_most))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def in_memory_file(data: bytes) -> Iterator[str]:
    """A path under which only this process can read `data`; no disk ever holds it."""
    descriptor = os.memfd_create("kbroker", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
