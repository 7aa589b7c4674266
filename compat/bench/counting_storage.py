"""The directory tier as a plug-in that counts the bytes read from it.

remote.log.storage.manager.class.name   compat.bench.counting_storage:CountingStorage
rsm.config.dir                          the tier
rsm.config.counts                       a file: a line for each object, `log|index BYTES`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata
from kbroker.tiered.local import LocalRemoteStorage


class CountingStream:
    """A stream that records at its end how much was read."""

    def __init__(self, stream: BinaryIO, counts: str) -> None:
        self._stream, self._counts, self._read = stream, counts, 0

    def read(self, size: int = -1) -> bytes:
        """See BinaryIO."""
        data = self._stream.read(size)
        self._read += len(data)
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """See io.RawIOBase."""
        size = self._stream.readinto(buffer)  # type: ignore[attr-defined]
        self._read += size
        return int(size)

    def close(self) -> None:
        """See BinaryIO."""
        self._stream.close()
        note(self._counts, "log", self._read)
        self._read = 0

    def __enter__(self) -> CountingStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CountingStorage(LocalRemoteStorage):
    """See the module's docstring."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """Errors: ValueError."""
        own = dict(configs)
        self._counts = own.pop("counts")
        super().configure(own)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        """See RemoteStorageManager."""
        stream = super().fetch_log_segment(metadata, start_position, end_position)
        return cast(BinaryIO, CountingStream(stream, self._counts))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """See RemoteStorageManager."""
        data = super().fetch_index(metadata, index_type)
        note(self._counts, "index", len(data))
        return data


def note(path: str, kind: str, size: int) -> None:
    """Append a line atomically, because several processes write to the file."""
    place = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(place, f"{kind} {size}\n".encode())
    finally:
        os.close(place)


def counted(path: Path) -> dict[str, int]:
    """The sums by kind."""
    found = {"log": 0, "index": 0}
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, size = line.split()
        found[kind] += int(size)
    return found
