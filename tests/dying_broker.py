"""`kbroker serve` that dies at a chosen operation of the real disk, like by `kill -9` at exactly that moment.

    KBROKER_DIES_AT='rename before 1 *.manifest.json.tmp' python -m tests.dying_broker serve ...

The words are an operation (write, rename, unlink, sync), a moment (before, half, after), the number of the matching
operation, counted from 1, and an fnmatch pattern of paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from fnmatch import fnmatch

from kbroker import cli, node
from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.runtime.env import RealEnv
from kbroker.runtime.ports import Buffer

DIES_AT = "KBROKER_DIES_AT"
EXIT_CODE = 137


class DyingDisk(RealDisk):
    """The real disk, with an operation at which the process dies."""

    is_shared = False  # a worker would not count the operations

    def __init__(self, text: str) -> None:
        self.operation, self.moment, number, self.pattern = text.split(" ", 3)
        self._left = int(number)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        dying = DyingFile(path, os.dup(file.fileno()))
        dying.disk = self
        file.close()
        return dying

    def rename(self, old: str, new: str) -> None:
        self.around("rename", old, lambda: super(DyingDisk, self).rename(old, new))

    def unlink(self, path: str) -> None:
        self.around("unlink", path, lambda: super(DyingDisk, self).unlink(path))

    def around(self, operation: str, path: str, do: Callable[[], None], half: Callable[[], None] | None = None) -> None:
        """Run the operation, or die before, in the middle of it, or after it."""
        dies = operation == self.operation and fnmatch(path, self.pattern)
        if dies:
            self._left -= 1
            dies = self._left == 0
        if dies and self.moment == "before":
            os._exit(EXIT_CODE)
        if dies and self.moment == "half":
            assert half is not None
            half()
            os._exit(EXIT_CODE)
        do()
        if dies:
            os._exit(EXIT_CODE)


class DyingFile(RealFile):
    __slots__ = ("disk",)

    def pwrite(self, data: Buffer, position: int) -> None:
        begun = memoryview(data)[: len(data) // 2]
        write = super().pwrite
        self.disk.around("write", self.path, lambda: write(data, position), lambda: write(begun, position))

    def sync(self) -> None:
        self.disk.around("sync", self.path, super().sync)


class DyingEnv(RealEnv):
    def __init__(self) -> None:
        super().__init__()
        self.disk = DyingDisk(os.environ[DIES_AT])


if __name__ == "__main__":
    node.RealEnv = DyingEnv  # type: ignore[misc]
    sys.exit(cli.main())
