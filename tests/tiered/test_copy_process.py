"""The directory plug-in when another process moves its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.worker import Workers
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.testing.remote_storage import RemoteStorageConformance
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.local import LocalRemoteStorage
from tests.runtime.jobs import DeadlyDisk
from tests.tiered.directories import TRANSACTIONS, is_whole


@pytest.fixture(autouse=True, scope="module")
def _workers_that_end() -> Iterator[None]:
    yield
    TestConformance.workers.close()


def manager_in(directory: Path, workers: Workers, disk: RealDisk | None = None) -> LocalRemoteStorage:
    manager = LocalRemoteStorage(disk, run=workers.run)
    manager.configure({"dir": str(directory)})
    return manager


class TestConformance(RemoteStorageConformance):
    workers = Workers(report=print)

    def make_manager(self, directory: Path) -> LocalRemoteStorage:
        return manager_in(directory, self.workers)


def segment_in(directory: Path) -> WrittenSegment:
    return write_segment(str(directory), batches=30, transaction_index=TRANSACTIONS)


def left(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_a_worker_does_the_work(tmp_path: Path) -> None:
    mine = Workers(report=print)
    manager, segment = manager_in(tmp_path / "tier", mine), segment_in(tmp_path)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert len(mine.pids) == 1
    assert is_whole(manager, segment)
    mine.close()


def test_m8_a_copy_is_right_after_its_worker_died_writing(tmp_path: Path) -> None:
    reports: list[str] = []
    mine = Workers(report=reports.append)
    manager, segment = manager_in(tmp_path / "tier", mine, DeadlyDisk("write")), segment_in(tmp_path)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert len(reports) == 1
    assert is_whole(manager, segment)
    assert not [path for path in left(tmp_path / "tier") if path.suffix == ".tmp"]
    mine.close()


def test_m8_a_copy_is_retried_after_its_worker_died_syncing(tmp_path: Path) -> None:
    mine = Workers(report=print)
    manager, segment = manager_in(tmp_path / "tier", mine, DeadlyDisk("sync")), segment_in(tmp_path)
    with pytest.raises(RetriableRemoteStorageError, match="ended with -9"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert left(tmp_path / "tier") == []
    again = manager_in(tmp_path / "tier", mine)
    again.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(again, segment)
    mine.close()


@pytest.mark.parametrize("named", [".log", ".leader-epoch-checkpoint", ".manifest.json"])
def test_m8_a_copy_is_retried_after_its_worker_died_renaming(tmp_path: Path, named: str) -> None:
    mine = Workers(report=print)
    manager, segment = manager_in(tmp_path / "tier", mine, DeadlyDisk(named)), segment_in(tmp_path)
    for _ in range(2):
        with pytest.raises(RetriableRemoteStorageError, match="ended with -9"):
            manager.copy_log_segment_data(segment.metadata, segment.data)
    assert left(tmp_path / "tier"), "it is unknown which files were renamed"
    manager.delete_log_segment_data(segment.metadata)
    assert left(tmp_path / "tier") == []
    again = manager_in(tmp_path / "tier", mine)
    again.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(again, segment)
    mine.close()


def test_file_errors_of_the_worker_are_reported_as_without_it(tmp_path: Path) -> None:
    reports: list[str] = []
    mine = Workers(report=reports.append)
    manager, segment = manager_in(tmp_path / "tier", mine), segment_in(tmp_path)
    shutil.move(segment.data.log_segment, tmp_path / "elsewhere")
    with pytest.raises(RemoteStorageError, match="No such file") as caught:
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert not isinstance(caught.value, RetriableRemoteStorageError)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    shutil.move(tmp_path / "elsewhere", segment.data.log_segment)
    with Path(segment.data.log_segment).open("ab") as file:
        file.write(b"more")
    with pytest.raises(RemoteStorageError, match="bytes, not"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert left(tmp_path / "tier") == []
    assert reports == []
    mine.close()
