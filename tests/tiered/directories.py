"""A simulated disk with segments to copy, and a directory tier on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.testing.remote_storage import read_all
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RetriableRemoteStorageError,
)
from kbroker.tiered.layout import object_name
from kbroker.tiered.local import LocalRemoteStorage

ROOT = "/somewhere/tier"
CONFIGS = {"dir": ROOT, "log.dir": "/data", "broker.id": "1", "cluster.id": "5L6g3nShT-eMCtK--X86sw"}
TRANSACTIONS = bytes(34)


def on(disk: SimulatedDisk) -> LocalRemoteStorage:
    manager = LocalRemoteStorage(disk)
    manager.configure(CONFIGS)
    return manager


def new_disk(disk: SimulatedDisk | None = None) -> SimulatedDisk:
    """A disk with durable directories for logs and for the tier."""
    disk = SimulatedDisk() if disk is None else disk
    for path in ("/log", "/somewhere"):
        disk.make_directory(path)
    disk.sync_directory("/")
    return disk


def written(disk: SimulatedDisk, *, start_offset: int = 42, batches: int = 30) -> WrittenSegment:
    """A segment with durable files."""
    segment = write_segment(
        "/log",
        disk=disk,
        batches=batches,
        start_offset=start_offset,
        leader_epochs=((3, 0), (5, start_offset + 9)),
        transaction_index=TRANSACTIONS,
    )
    home = segment.data.log_segment.rpartition("/")[0]
    for name in disk.list(home):
        disk.open(f"{home}/{name}").sync()
    disk.sync_directory(home)
    disk.sync_directory("/log")
    return segment


def is_whole(manager: LocalRemoteStorage, segment: WrittenSegment) -> bool:
    return read_all(manager.fetch_log_segment(segment.finished, 0)) == segment.log and all(
        manager.fetch_index(segment.finished, index_type) == segment.indexes[index_type] for index_type in IndexType
    )


def is_gone(manager: LocalRemoteStorage, metadata: RemoteLogSegmentMetadata) -> bool:
    calls: list[Callable[[], object]] = [lambda: manager.fetch_log_segment(metadata, 0)]
    calls += [lambda kind=kind: manager.fetch_index(metadata, kind) for kind in IndexType]  # type: ignore[misc]
    for call in calls:
        with pytest.raises((RemoteResourceNotFound, RetriableRemoteStorageError)):
            call()
    return True


def files(disk: SimulatedDisk) -> list[str]:
    """All files of the tier; empty topic directories are ignored."""
    return [path for path, data in disk.image("/somewhere").items() if data is not None]


def path_of(segment: WrittenSegment, kind: str) -> str:
    return f"{ROOT}/{object_name(segment.metadata, kind)}"


def changed(disk: SimulatedDisk, path: str, change: Callable[[bytes], bytes]) -> None:
    file = disk.open(path)
    data = change(file.pread(file.size(), 0))
    file.truncate(0)
    file.pwrite(data, 0)
