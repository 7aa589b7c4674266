"""The batches of a file that nobody appends to, or as far as it went when somebody began to read it.

The file is read in pieces of a few MiB, never as a whole. CRCs are left to the caller; bytes that cannot be a batch end
the reading, because where the next batch begins is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.runtime.ports import File
from wire.errors import Malformed
from wire.record_batch import HEADER_SIZE, RecordBatch

CHUNK_BYTES: Final = 4 << 20
NO_LIMIT: Final = 0x7FFF_FFFF


class BatchReader:
    """The batches of a file from a position on, in its order.

    When the iteration is over, `position` is where it stopped and `error` what is wrong there; None at the end of the
    file or of the limit.
    """

    def __init__(
        self, file: File, position: int = 0, *, max_bytes: int = NO_LIMIT, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._file = file
        self._chunk_bytes = chunk_bytes
        self.position = position
        self.end = min(file.size(), max_bytes) if max_bytes < NO_LIMIT else file.size()
        self._is_limited = max_bytes < NO_LIMIT
        self.error: str | None = None

    def __iter__(self) -> Iterator[RecordBatch]:
        chunk, chunk_start = memoryview(b""), self.position
        while self.position < self.end:
            at = self.position - chunk_start
            try:
                if at + HEADER_SIZE > len(chunk):
                    chunk, chunk_start, at = self._read(self._chunk_bytes), self.position, 0
                batch = RecordBatch(chunk, at)
                if not batch.is_whole:
                    chunk, chunk_start = self._read(max(batch.size, self._chunk_bytes)), self.position
                    batch = RecordBatch(chunk, 0)
                if not batch.is_whole:
                    raise Malformed(f"a batch of {batch.size} bytes, but {len(chunk)} are there")
            except Malformed as error:
                self.error = None if self._is_limited else self._explain(str(error))
                return
            yield batch
            self.position += batch.size

    def _read(self, size: int) -> memoryview:
        """Bytes from the position; beyond the end as it was, if the file has grown meanwhile and they are asked for."""
        limit = self.end if self._is_limited else max(self.end, self._file.size())
        return memoryview(self._file.pread(min(size, limit - self.position), self.position))

    def _explain(self, error: str) -> str:
        size = self.end - self.position
        position = self.position
        while position < self.end:
            piece = self._file.pread(min(CHUNK_BYTES, self.end - position), position)
            if not piece or any(piece):
                return f"{error}; {size} bytes are left"
            position += len(piece)
        return f"{size} bytes of zeros: space allocated ahead, or data that a loss of power took"
