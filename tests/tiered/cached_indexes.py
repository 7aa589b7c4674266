"""A simulated disk with segments in a directory tier, and a cache of their indexes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata
from kbroker.tiered.index_cache import RemoteIndexCache
from kbroker.tiered.index_files import SUFFIXES
from kbroker.tiered.indexes import RemoteIndexes
from kbroker.tiered.layout import object_name
from kbroker.tiered.local import LocalRemoteStorage
from wire.types import uuid_to_text

LARGE = 1 << 30


class Store(LocalRemoteStorage):
    """The directory plug-in, with a count of its calls and a gate that can block them."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        super().__init__(disk)
        self.asked: Counter[IndexType] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.unwell: Exception | None = None

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        self.asked[index_type] += 1
        self.reached.set()
        assert self.gate.wait(timeout=30)
        if self.unwell is not None:
            raise self.unwell
        return super().fetch_index(metadata, index_type)


class World:
    """A disk with segments in a tier, an index cache, and a clock that does not advance."""

    def __init__(self, disk: SimulatedDisk | None = None, *, segments: int = 1, batches: int = 40) -> None:
        self.disk = SimulatedDisk() if disk is None else disk
        self.disk.make_directory("/log")
        self.disk.make_directory("/data")
        self.now_ms = 1_000_000
        self.reports: list[str] = []
        self.store = Store(self.disk)
        self.store.configure({"dir": "/tier"})
        self.segments = [
            write_segment("/log", disk=self.disk, batches=batches, start_offset=1_000 * number)
            for number in range(segments)
        ]
        for segment in self.segments:
            self.store.copy_log_segment_data(segment.metadata, segment.data)
        self.cache = self.start()

    def start(self, **settings: int) -> RemoteIndexCache:
        """The cache of a broker that has just started."""
        return RemoteIndexCache(
            "/data",
            self.store,
            disk=self.disk,
            now_ms=lambda: self.now_ms,
            report=self.reports.append,
            **{"max_bytes": LARGE, **settings},
        )

    def ask(self, number: int = 0) -> RemoteIndexes:
        """The indexes of a segment, which are on disk afterwards."""
        found = self.cache.indexes(self.segments[number].finished)
        self.cache.write_down()
        return found

    def files(self) -> list[str]:
        directory = self.cache.directory
        return self.disk.list(directory) if self.disk.exists(directory) else []

    def names(self, *numbers: int) -> list[str]:
        """The file names of these segments."""
        return sorted(name_of(self.segments[number]) + suffix for number in numbers for suffix in SUFFIXES)

    def path(self, suffix: str, number: int = 0) -> str:
        return f"{self.cache.directory}/{name_of(self.segments[number])}{suffix}"

    def change(self, path: str, change: Callable[[bytes], bytes]) -> None:
        file = self.disk.open(path)
        data = change(file.pread(file.size(), 0))
        file.truncate(0)
        file.pwrite(data, 0)

    def change_in_tier(self, kind: str, change: Callable[[bytes], bytes]) -> None:
        self.change(f"/tier/{object_name(self.segments[0].metadata, kind)}", change)


def name_of(segment: WrittenSegment) -> str:
    segment_id = segment.metadata.remote_log_segment_id.id
    return f"{segment.metadata.start_offset}_{uuid_to_text(segment_id)}"


def id_of(segment: WrittenSegment) -> UUID:
    return segment.metadata.remote_log_segment_id.id


def is_right(indexes: RemoteIndexes, segment: WrittenSegment) -> bool:
    return (
        indexes.start_offset == segment.metadata.start_offset
        and indexes.offsets == segment.indexes[IndexType.OFFSET] != b""
        and indexes.times == segment.indexes[IndexType.TIMESTAMP]
        and indexes.transactions == b""
    )


def flipped(data: bytes, at: int = 9) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
