"""A piece of a file as a stream of bytes, for managers that have files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kbroker.runtime.ports import File
from kbroker.tiered.api import RemoteObjectDamaged, RemoteStorageError


@runtime_checkable
class FillsMemory(Protocol):
    """What a stream may be that need not make bytes of what it reads: a chunk has its memory already."""

    def fill(self, view: memoryview) -> int:
        """Put the next bytes into `view`, at least one unless the stream has ended; how many. Errors: as `read`."""
        ...


class FileStream(io.RawIOBase):
    """The bytes from `start` up to `end`, exclusive; the file is its own.

    Promise  a read gives as many bytes as were asked for while there are any
    Errors   RemoteObjectDamaged when the file ends before `end`; a disk's errors as `classified` makes them
    """

    def __init__(self, file: File, start: int, end: int, classified: Callable[[OSError], RemoteStorageError]) -> None:
        super().__init__()
        self._file = file
        self._position = start
        self._end = end
        self._classified = classified

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Straight from the file: what io would do costs another copy."""
        if self.closed:
            raise ValueError("this stream is closed")
        left = self._end - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        try:
            data = self._file.pread(wanted, self._position)
        except OSError as error:
            raise self._classified(error) from error
        if len(data) < wanted:
            raise RemoteObjectDamaged(f"{self._file.path} ends at {self._position + len(data)}, not at {self._end}")
        self._position += wanted
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        return self.fill(memoryview(buffer).cast("B"))

    def fill(self, view: memoryview) -> int:
        """Straight from the file, where it has a descriptor."""
        try:
            descriptor = self._file.fileno()
        except OSError:
            data = self.read(len(view))
            view[: len(data)] = data
            return len(data)
        if self.closed:
            raise ValueError("this stream is closed")
        begin, end = self._position, min(self._end, self._position + len(view))
        while self._position < end:
            try:
                got = os.preadv(descriptor, [view[self._position - begin : end - begin]], self._position)
            except OSError as error:
                raise self._classified(error) from error
            if not got:
                raise RemoteObjectDamaged(f"{self._file.path} ends at {self._position}, not at {self._end}")
            self._position += got
        return end - begin

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
