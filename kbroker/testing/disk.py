"""A disk in memory that can lose unsynced data, fail, fill up and die: `kbroker.runtime.ports.Disk` for tests.

The process sees a POSIX file system. Underneath, each file has a durable image and an ordered list of writes that are
not in it yet, and names (creations, renames, removals) are durable only after `sync_directory`. Three features build on
that:

* `crash(loss, seed=...)` gives the disk that the next process finds, after the death of this process (every completed
  write survives, still unsynced) or after the loss of power (see `disk_nodes.Loss`). It does not change this disk,
  so one run of a workload can crash at each of its operations: `observer` is called before each one.
* `kill_at(number)` kills the process at that operation. `Crashed` is not an `Exception`, and every later call on this
  disk raises it again, so no handler and no `finally` of a dying process can still change the disk.
* `inject(Fault(...))` makes operations fail: EIO, ENOSPC, a partial write, a sync whose error loses the pages. `fail`
  and `slow` are short for it.

Everything that changes the disk or makes it durable is an operation with a number, a name and a path (`operations`
counts them). Reads are not counted, because a crash before or after a read leaves the same disk, but they can fail.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatch
from io import UnsupportedOperation
from os import strerror
from typing import Any

from kbroker.runtime.ports import Buffer
from kbroker.testing.disk_nodes import DirectoryNode, FileNode, Loss, NameChanges, Node, Tree, settle
from kbroker.testing.draws import Draws

_ROOMY = 1 << 40  # bytes of a disk without a given capacity


class Crashed(BaseException):
    """The process that used this disk is dead; only the harness that killed it may catch this."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One numbered operation, as an observer sees it before it happens.

    Shape   name is one of write, truncate, sync, create, rename, unlink, make_directory, remove_directory,
            sync_directory; data is the bytes of a write at position; for a truncation position is the new size
    """

    number: int
    name: str
    path: str
    position: int = 0
    data: bytes = b""
    node: FileNode | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        size = f" {len(self.data)} bytes at {self.position}" if self.name == "write" else ""
        return f"#{self.number} {self.name} {self.path}{size}"


@dataclass(slots=True)
class Fault:
    """Makes matching operations fail.

    Shape   error is an errno; number is the operation's number, or None for any; name is an operation's name or one of
            read, open, list, or * for any operation that is counted; path is an fnmatch pattern; with error 0 the
            operation succeeds, after slow_ms
    Units   skip: matches that still succeed; times: matches that fail, -1 for all; written: bytes of a failed write
            that reach the file before it fails (a short write)
    """

    error: int
    number: int | None = None
    name: str = "*"
    path: str = "*"
    skip: int = 0
    times: int = 1
    written: int = 0
    slow_ms: float = 0

    def strikes(self, number: int, name: str, path: str) -> bool:
        """Whether this operation fails; counts the match."""
        if self.times == 0 or (self.number is not None and self.number != number):
            return False
        if not fnmatch(name, self.name) or not fnmatch(path, self.path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class SimulatedDisk:
    """The `Disk` port in memory.

    Shape   paths are absolute or relative to the root, which exists
    Shape   capacity_bytes is the size of the disk, None for unlimited, and full_errno the error of a write that does
            not fit; directories in other_file_systems are on another disk, which is unlimited
    Errors  those of the real disk: an OSError with errno and path; Crashed once it is dead
    """

    is_shared = False

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        timestamp_ms: Callable[[], int] = lambda: 0,
        tree: Tree | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.full_errno = errno.ENOSPC
        self.other_file_systems: tuple[str, ...] = ()
        self.operations = 0
        self.dead = False
        self.observer: Callable[[Operation], None] | None = None
        self._timestamp_ms = timestamp_ms
        self._tree = Tree() if tree is None else tree
        self._faults: list[Fault] = []
        self._locked: set[FileNode] = set()
        self.slowed: Callable[[float], object] = lambda _ms: None
        """Called with the milliseconds that an operation takes longer; the environment of the process sets it."""
        self._dies_at: tuple[int, float] | None = None

    # Control by tests.

    def inject(self, fault: Fault) -> None:
        """Make operations fail from now on."""
        self._faults.append(fault)

    def fail(
        self, operation: str = "*", path: str = "*", *, error: int = errno.EIO, times: int = 1, skip: int = 0
    ) -> None:
        """Make operations fail, or never succeed again with times=-1; see Fault for their names and paths."""
        self.inject(Fault(error, name=operation, path=path, times=times, skip=skip))

    def fill(self, *, free_bytes: int = 0) -> None:
        """Leave this much space until `heal`."""
        self.capacity_bytes = self._used_bytes() + free_bytes

    def slow(self, ms: float, operation: str = "*", path: str = "*") -> None:
        """Make each of these operations take this much longer until `heal`. Needs an environment with latency_ms."""
        self.inject(Fault(0, name=operation, path=path, times=-1, slow_ms=ms))

    def heal(self) -> None:
        """Remove all injected faults and the limit of space."""
        self._faults.clear()
        self.capacity_bytes = None

    def kill_at(self, number: int, *, done: float = 0.0) -> None:
        """Die at the operation of this number (the first is 0); done is the part of a write that still happens."""
        self._dies_at = (number, done)

    def crash(
        self, loss: Loss = Loss.PROCESS_DEATH, *, seed: int = 0, during: Operation | None = None, done: float = 0.5
    ) -> SimulatedDisk:
        """The disk that the next process finds if this one crashes now.

        `during` is the operation that was just passed to an observer: if it is a write, the part `done` of it has
        happened. The result has no faults, locks or observers, and counts its operations from 0.
        """
        copies: dict[int, Any] = {}  # by the id of the original
        tree = deepcopy(self._tree, copies)
        survivor = SimulatedDisk(capacity_bytes=self.capacity_bytes, timestamp_ms=self._timestamp_ms, tree=tree)
        survivor.full_errno, survivor.other_file_systems = self.full_errno, self.other_file_systems
        # Not by path: the file may have been renamed since it was opened, or removed.
        if during is not None and during.name == "write" and (node := copies.get(id(during.node))) is not None:
            node.write(tree.next_sequence(), during.position, during.data[: int(len(during.data) * done)])
        settle(tree, loss, Draws("crash", loss.value, seed))
        return survivor

    def image(self, directory: str = "/") -> dict[str, bytes | None]:
        """Every path below a directory with its contents (None: a directory), to compare disks."""
        self._living()
        found: dict[str, bytes | None] = {}

        def walk(prefix: str, node: Node) -> None:
            if isinstance(node, FileNode):
                found[prefix] = bytes(node.contents)
                return
            found[prefix] = None
            for name in sorted(node.entries):
                walk(posixpath.join(prefix, name), node.entries[name])

        walk(posixpath.normpath(posixpath.join("/", directory)), self._directory(directory))
        return found

    # The port.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        """Open a file; `create` creates it if it does not exist."""
        self._read("open", path)
        node = self._lookup(path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = self._create(path)
        if isinstance(node, DirectoryNode):
            raise _error(errno.EISDIR, path)
        return SimulatedFile(self, node, path, writable=writable)

    def exists(self, path: str) -> bool:
        self._living()
        return self._lookup(path) is not None

    def size(self, path: str) -> int:
        self._living()
        node = self._present(path)
        return len(node.contents) if isinstance(node, FileNode) else 0

    def list(self, path: str) -> list[str]:
        self._read("list", path)
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        if name in directory.entries:
            raise _error(errno.EEXIST, path)
        self._operate("make_directory", path)
        self._rename([(directory, name, DirectoryNode(modified_ms=self._timestamp_ms()))])

    def remove_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        if self._directory(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        self._operate("remove_directory", path)
        self._rename([(directory, name, None)])

    def rename(self, old: str, new: str) -> None:
        old_directory, old_name = self._parent(old)
        new_directory, new_name = self._parent(new)
        node = self._present(old)
        replaced = new_directory.entries.get(new_name)
        if replaced is node:
            return
        if isinstance(replaced, DirectoryNode):
            if isinstance(node, FileNode):
                raise _error(errno.EISDIR, new)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, new)
        elif isinstance(replaced, FileNode) and isinstance(node, DirectoryNode):
            raise _error(errno.ENOTDIR, new)
        self._operate("rename", old)
        self._rename([(old_directory, old_name, None), (new_directory, new_name, node)])

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        if isinstance(self._present(path), DirectoryNode):
            raise _error(errno.EISDIR, path)
        self._operate("unlink", path)
        self._rename([(directory, name, None)])

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._operate("sync_directory", path)
        self._tree.sync_directory(directory)

    def free_bytes(self, path: str) -> int:
        self._living()
        self._present(path)
        if self.capacity_bytes is None or self._is_elsewhere(path):
            return _ROOMY
        return max(0, self.capacity_bytes - self._used_bytes())

    def total_bytes(self, path: str) -> int:
        self._living()
        self._present(path)
        return _ROOMY if self.capacity_bytes is None or self._is_elsewhere(path) else self.capacity_bytes

    def allocate(self, path: str, size: int) -> None:
        """Extend a file by zeros, which take space like other bytes."""
        file = self.open(path, create=True)
        missing = size - file.size()
        if missing > 0:
            file.pwrite(bytes(missing), file.size())
        file.close()

    def device(self, path: str) -> int:
        self._living()
        self._present(path)
        return int(self._is_elsewhere(path))

    def modified_ms(self, path: str) -> int:
        self._living()
        return self._present(path).modified_ms

    def lock(self, path: str) -> SimulatedFile:
        """Create and lock a file until it is closed; BlockingIOError if it is locked already."""
        file = self.open(path, create=True)
        if file.node in self._locked:
            raise BlockingIOError(errno.EAGAIN, strerror(errno.EAGAIN), path)
        self._locked.add(file.node)
        file.locks = True
        return file

    # Shared by files and the methods above.

    def _operate(
        self, name: str, path: str, position: int = 0, data: bytes = b"", node: FileNode | None = None
    ) -> None:
        """Count one operation and make it fail or kill, before it changes anything."""
        self._living()
        number = self.operations
        self.operations += 1
        if self.observer is not None:
            self.observer(Operation(number, name, path, position, data, node))
        if self._dies_at is not None and number >= self._dies_at[0]:
            if node is not None and name == "write":
                self._land(node, position, data[: int(len(data) * self._dies_at[1])])
            self.dead = True
            raise Crashed(f"killed at operation {number}: {name} {path}")
        for fault in self._faults:
            if fault.strikes(number, name, path):
                if not fault.error:
                    self.slowed(fault.slow_ms)
                    continue
                if node is not None and name == "write":
                    self._land(node, position, data[: fault.written])
                elif node is not None and name == "sync":
                    node.fail_sync()
                raise _error(fault.error, path)

    def _land(self, node: FileNode, position: int, data: bytes | None) -> None:
        if data != b"":
            node.write(self._tree.next_sequence(), position, data)
            node.modified_ms = self._timestamp_ms()

    def _sync(self, node: FileNode, path: str) -> None:
        self._operate("sync", path, node=node)
        node.sync()

    def _write(self, node: FileNode, path: str, position: int, data: bytes) -> None:
        self._operate("write", path, position, data, node)
        if self.capacity_bytes is not None and not self._is_elsewhere(path):
            room = self.capacity_bytes - self._used_bytes() + len(node.contents) - position
            if len(data) > room:
                self._land(node, position, data[: max(0, room)])
                raise _error(self.full_errno, path)
        self._land(node, position, data)

    def _read(self, name: str, path: str) -> None:
        self._living()
        for fault in self._faults:
            if fault.number is None and fault.name == name and fault.strikes(-1, name, path):
                if not fault.error:
                    self.slowed(fault.slow_ms)
                    continue
                raise _error(fault.error, path)

    def _living(self) -> None:
        if self.dead:
            raise Crashed("this disk belongs to a dead process")

    def _rename(self, changes: NameChanges) -> None:
        self._tree.rename(changes)
        for directory, _, _ in changes:
            directory.modified_ms = self._timestamp_ms()

    def _create(self, path: str) -> FileNode:
        directory, name = self._parent(path)
        self._operate("create", path)
        node = FileNode(modified_ms=self._timestamp_ms())
        self._rename([(directory, name, node)])
        return node

    def _used_bytes(self) -> int:
        """Bytes of the files that have a name and are not on another file system."""
        used, left = 0, [("", self._tree.root)]
        while left:
            prefix, directory = left.pop()
            for name, node in directory.entries.items():
                if isinstance(node, FileNode):
                    used += len(node.contents)
                elif f"{prefix}/{name}" not in self.other_file_systems:
                    left.append((f"{prefix}/{name}", node))
        return used

    def _is_elsewhere(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{other}/") for other in self.other_file_systems)

    def _lookup(self, path: str) -> Node | None:
        node: Node = self._tree.root
        for name in path.split("/"):
            if name in {"", "."}:
                continue
            if isinstance(node, FileNode):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                return None
            node = found
        return node

    def _present(self, path: str) -> Node:
        node = self._lookup(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._present(path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        self._living()
        parent, name = posixpath.split(path.rstrip("/"))
        return self._directory(parent), name


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, node: FileNode, path: str, *, writable: bool) -> None:
        self.path = path
        self.node = node
        self.locks = False
        self._disk = disk
        self._writable = writable
        self._open = True

    def pread(self, size: int, position: int) -> bytes:
        self._usable()
        self._disk._read("read", self.path)
        return bytes(self.node.contents[position : position + size])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def begin_write_back(self, position: int, size: int) -> None:  # noqa: ARG002
        """Changes nothing here: a crash may find any subset of the unsynced writes on the disk in any case."""
        self._usable()

    def pwrite(self, data: Buffer, position: int) -> None:
        self._changeable()
        self._disk._write(self.node, self.path, position, bytes(data))

    def truncate(self, size: int) -> None:
        self._changeable()
        self._disk._operate("truncate", self.path, size, node=self.node)
        self._disk._land(self.node, size, None)

    def sync(self) -> None:
        self._usable()
        self._disk._sync(self.node, self.path)

    def size(self) -> int:
        self._usable()
        return len(self.node.contents)

    def fileno(self) -> int:
        """A simulated file has no descriptor."""
        raise UnsupportedOperation("a simulated file has no descriptor")

    def close(self) -> None:
        # Changes nothing on the disk and is called by finalizers, so it is the only call that a dead disk allows.
        if self._open:
            self._open = False
            if self.locks:
                self._disk._locked.discard(self.node)

    def _usable(self) -> None:
        self._disk._living()
        if not self._open:
            raise _error(errno.EBADF, self.path)

    def _changeable(self) -> None:
        self._usable()
        if not self._writable:
            raise _error(errno.EBADF, self.path)


def _error(number: int, path: str) -> OSError:
    """The OSError, of the subclass for this errno, that the operating system would raise."""
    return OSError(number, strerror(number), path)
