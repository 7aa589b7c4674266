"""Disk space that is reserved for writes that must succeed on a full disk.

Deleting a topic writes a record to the metadata log, and a node writes a few records at startup. To have space for them
on a full disk, a file called `kbroker.reserve` holds allocated blocks. If a write fails because the disk is full, a
slice is cut off that file and the write is retried, until it succeeds or the reserve is used up. Slices are small, so
that another process that takes the freed space does not get all of it. The file grows back when there is space again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kbroker.runtime.ports import Disk
from kbroker.storage.durable import lacks_space
from wire.errors import KafkaError

FILE_NAME: Final = "kbroker.reserve"
SLICES: Final = 32
SMALLEST_SLICE_BYTES: Final = 4096  # a block of most file systems

Result = TypeVar("Result")


class SpaceReserve:
    """See the module's text.

    Units       held_bytes is the length of the file, size_bytes what it should be; 0 keeps no reserve
    Concurrent  several threads may spend: each cut leaves the file shorter, or as it was
    """

    __slots__ = ("_disk", "_path", "_slice_bytes", "held_bytes", "size_bytes")

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._slice_bytes = max(SMALLEST_SLICE_BYTES, size_bytes // SLICES)
        self.size_bytes = size_bytes
        self.held_bytes = disk.size(self._path) if disk.exists(self._path) else 0

    def make(self) -> None:
        """Allocate the reserve and free any excess. OSError if there is not enough space."""
        disk, path = self._disk, self._path
        if not self.size_bytes:
            if self.held_bytes:
                disk.unlink(path)
                self.held_bytes = 0
            return
        held_bytes = min(self.held_bytes, self.size_bytes)
        try:
            disk.allocate(path, self.size_bytes)
        except OSError:
            if disk.exists(path):
                self._cut(held_bytes)
            raise
        self._cut(self.size_bytes)

    def grow_back(self, free_bytes: int) -> None:
        """Allocate the missing part if that much and one slice are free. OSError."""
        missing = self.size_bytes - self.held_bytes
        if missing > 0 and free_bytes >= missing + self._slice_bytes:
            self.make()

    def spend_on(self, write: Callable[[], Result], *, keeps_half: bool = False) -> Result:
        """Call `write` and return its result. While the disk is full, free a slice of the reserve and call it again.

        `keeps_half` is for less important writes: half of the reserve stays for deletions and the next start.
        Errors  those of `write`
        """
        lowest = self.size_bytes // 2 if keeps_half else 0
        while True:
            try:
                return write()
            except (OSError, KafkaError) as error:
                if not lacks_space(error) or self.held_bytes <= lowest:
                    raise
            self._cut(max(lowest, self.held_bytes - self._slice_bytes))

    @property
    def is_half_spent(self) -> bool:
        """Whether only essential writes are allowed."""
        return self.held_bytes < self.size_bytes // 2

    def _cut(self, size: int) -> None:
        """Truncate the reserve to `size`."""
        file = self._disk.open(self._path)
        try:
            if file.size() > size:
                file.truncate(size)
        except OSError as error:
            # This file system needs space to free some, so the reserve is of no use.
            if not lacks_space(error):
                raise
            size = 0
        finally:
            file.close()
        self.held_bytes = size
