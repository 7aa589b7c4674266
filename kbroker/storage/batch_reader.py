"""Read the batches of a file that is not being appended to, or up to the size it had when reading began.

The reader reads pieces of a few MiB, never the whole file. It does not check CRCs. It stops at bytes that cannot be a
batch, because the start of the next batch is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.runtime.ports import ReadableFile
from wire.batch_header import HEADER_SIZE
from wire.errors import Malformed
from wire.record_batch import RecordBatch

CHUNK_BYTES: Final = 4 << 20
NO_LIMIT: Final = 0x7FFF_FFFF


class BatchReader:
    """The batches of a file from a position on, in file order.

    After the iteration `position` is where it stopped. `error` says what is wrong there, None at the end of the file or
    of the limit.
    """

    def __init__(
        self, file: ReadableFile, position: int = 0, *, max_bytes: int = NO_LIMIT, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._file = file
        self._chunk_bytes = chunk_bytes
        self.position = position
        self.end = min(file.size(), max_bytes) if max_bytes < NO_LIMIT else file.size()
        self._is_limited = max_bytes < NO_LIMIT
        self.error: str | None = None

    def __iter__(self) -> Iterator[RecordBatch]:
        chunk, chunk_start = b"", self.position
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
                    raise Malformed(f"a batch of {batch.size} bytes, but only {len(chunk)} bytes remain")
            except Malformed as error:
                self.error = None if self._is_limited else self._explain(str(error))
                return
            yield batch
            self.position += batch.size

    def _read(self, size: int) -> bytes:
        """Up to `size` bytes from the position on. Without a limit this may include bytes appended since."""
        limit = self.end if self._is_limited else max(self.end, self._file.size())
        return self._file.pread(min(size, limit - self.position), self.position)

    def _explain(self, error: str) -> str:
        size = self.end - self.position
        position = self.position
        while position < self.end:
            piece = self._file.pread(min(CHUNK_BYTES, self.end - position), position)
            if not piece or any(piece):
                return f"{error}; {size} bytes remain"
            position += len(piece)
        return f"{size} bytes of zeros: preallocated space, or data lost in a power failure"
