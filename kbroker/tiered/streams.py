"""Byte ranges as streams, and the range of a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from kbroker.runtime.ports import File
from kbroker.tiered.api import RemoteObjectDamaged, RemoteStorageError


class RangeReader(io.RawIOBase):
    """The stream of a byte range. A read returns as many bytes as requested, fewer only at the range's end.

    Shape  `end` is exclusive
    """

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self._position, self._end = start, end

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase."""
        if self.closed:
            raise ValueError("this stream is closed")
        view = memoryview(buffer).cast("B")
        size = min(len(view), self._end - self._position)
        if size:
            self._fill(view[:size])
        return size

    def _fill(self, view: memoryview) -> None:
        """Fill the view, which is not larger than the rest, and advance the position."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True


class FileStream(RangeReader):
    """A range of a file. The stream owns the file.

    Errors   RemoteObjectDamaged if the file ends before `end`; disk errors as converted by `classified`
    """

    def __init__(self, file: File, start: int, end: int, classified: Callable[[OSError], RemoteStorageError]) -> None:
        super().__init__(start, end)
        self._file = file
        self._classified = classified

    def read(self, size: int = -1, /) -> bytes:
        """See io.RawIOBase, whose method reads into a buffer and copies that."""
        if self.closed:
            raise ValueError("this stream is closed")
        left = self._end - self._position
        size = left if size < 0 else min(size, left)
        try:
            data = self._file.pread(size, self._position)
        except OSError as error:
            raise self._classified(error) from error
        self._advance(len(data), size)
        return data

    def _fill(self, view: memoryview) -> None:
        try:
            got = self._file.pread_into(view, self._position)
        except OSError as error:
            raise self._classified(error) from error
        self._advance(got, len(view))

    def _advance(self, got: int, wanted: int) -> None:
        self._position += got
        if got < wanted:
            raise RemoteObjectDamaged(f"{self._file.path} ends at {self._position}, not at {self._end}")

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
