"""A byte range of a file as a stream, for storage managers that use files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kbroker.runtime.ports import File
from kbroker.tiered.api import RemoteObjectDamaged, RemoteStorageError


@runtime_checkable
class FillsMemory(Protocol):
    """Optional interface of a stream: read directly into given memory, without an intermediate bytes object."""

    def fill(self, view: memoryview) -> int:
        """Read the next bytes into `view` and return their number, 0 only at the end. Errors: as `read`."""
        ...


class FileStream(io.RawIOBase):
    """The bytes from `start` up to `end`, exclusive. The stream owns the file.

    Promise  a read returns as many bytes as requested until the end
    Errors   RemoteObjectDamaged if the file ends before `end`; disk errors as converted by `classified`
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
        """Read directly from the file: io's implementation would make another copy."""
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
        """Read directly into the view, if the file has a descriptor."""
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
