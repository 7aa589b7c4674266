"""A remote segment as a read-only directory of files, for code that reads local segments.

The files have the names that they had in the local log. The log is fetched by ranges on demand; each index is fetched
once.
"""

from __future__ import annotations

from typing import Final, Literal

from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.storage.segment import LOG_SUFFIX, file_name
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    RetriableRemoteStorageError,
)
from kbroker.tiered.calls import fill
from kbroker.tiered.catalogue import id_text, partition_of

FETCH_BYTES: Final = 4 << 20


class RemoteFile:
    """The log of a segment. Errors: RemoteStorageError; OSError if a stream ends too early."""

    def __init__(self, storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, path: str) -> None:
        self.path = path
        self._storage = storage
        self._segment = segment

    def size(self) -> int:
        return self._segment.segment_size_in_bytes

    def pread(self, size: int, position: int) -> bytes:
        """See File. If the store has fewer bytes than the metadata says, this is an error and not a shorter file."""
        wanted = min(size, self.size() - position)
        if wanted <= 0:
            return b""
        data = bytearray(wanted)
        with self._storage.fetch_log_segment(self._segment, position, position + wanted - 1) as stream:
            got = fill(stream, memoryview(data))
        if got < wanted:
            raise OSError(f"{self.path} ends in the tier at byte {position + got} instead of {self.size()}")
        return bytes(data)

    def close(self) -> None:
        """Nothing to close."""


class _BytesFile:
    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def close(self) -> None:
        """Nothing to close."""


class SegmentFiles:
    """A `ReadableDisk` with one directory: that of a segment, named like its partition.

    Shape   damaged are the indexes that the store reports as damaged
    Errors  RetriableRemoteStorageError from the constructor
    """

    def __init__(self, storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
        topic, partition = partition_of(segment)
        self.directory = f"{topic}-{partition}/{id_text(segment)}"
        self._storage = storage
        self._segment = segment
        self.log_path = f"{self.directory}/{file_name(segment.start_offset, LOG_SUFFIX)}"
        self.damaged: dict[IndexType, str] = {}
        self._held: dict[str, bytes] = {}
        for index_type in IndexType:
            try:
                self._held[self.path_of(index_type)] = storage.fetch_index(segment, index_type)
            except RemoteResourceNotFound:
                pass
            except RetriableRemoteStorageError:
                raise
            except RemoteStorageError as error:
                self.damaged[index_type] = str(error)

    def path_of(self, index_type: IndexType) -> str:
        """The path of an index."""
        if index_type is IndexType.LEADER_EPOCH:
            return f"{self.directory}/{EPOCH_CHECKPOINT}"
        is_behind = index_type is IndexType.PRODUCER_SNAPSHOT  # named by the base offset of the next segment
        base = self._segment.end_offset + 1 if is_behind else self._segment.start_offset
        return f"{self.directory}/{file_name(base, f'.{index_type.value}')}"

    def open(self, path: str, *, writable: Literal[False] = False) -> RemoteFile | _BytesFile:
        assert not writable, path
        if path == self.log_path:
            return RemoteFile(self._storage, self._segment, path)
        if path not in self._held:
            raise FileNotFoundError(2, "not in the tier", path)
        return _BytesFile(path, self._held[path])

    def names(self) -> frozenset[str]:
        """The names of the files in the directory."""
        return frozenset(path.removeprefix(f"{self.directory}/") for path in (*self._held, self.log_path))
